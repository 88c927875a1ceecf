// The learning rate of every iteration.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "orca/core/export.h"

namespace orca::learn {

/// What the optimizer was given.
struct BaseRate {
  double rate = 1e-3;
  double decay = 0;  ///< Used by DefaultSchedule only.
};

/// The iteration whose rate is asked for.
struct SchedulePoint {
  std::int64_t iteration = 0;  ///< Iterations that are done; the first one asks with 0.
  std::int64_t epoch = 1;      ///< The epoch that is under way, from 1.
  double loss = std::numeric_limits<double>::quiet_NaN();   ///< The last one; NaN: not known yet.
  double score = std::numeric_limits<double>::quiet_NaN();  ///< Of the last validation.
  /// Where the schedule began; one in a sequence begins when those before it have ended.
  std::int64_t first_iteration = 0;
};

/// A learning rate as a function of how far training is. One training uses one schedule, from one
/// thread, and asks in the order of the iterations; asking twice for the same one changes nothing.
class ORCA_API Schedule {
 public:
  Schedule() = default;
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;
  virtual ~Schedule() = default;

  virtual double Rate(const BaseRate& base, const SchedulePoint& at) = 0;

  /// What it remembers, for a checkpoint; most remember nothing.
  std::vector<double> State() const;
  /// Puts back what State() of a schedule of the same kind gave; throws kInvalidArgument when the
  /// numbers are not of one.
  void Restore(std::span<const double> state);

 protected:
  friend class Sequence;

  virtual void Append(std::vector<double>& state) const;
  /// Takes its numbers from the front of `state`.
  virtual void Take(std::span<const double>& state);
};

/// rate / (1 + decay · iteration).
ORCA_API std::shared_ptr<Schedule> DefaultSchedule();
/// rate · (1 - iteration / max_iteration) ^ power; 0 behind the end. As BigDL's it counts from the
/// beginning of the training, also in a sequence.
ORCA_API std::shared_ptr<Schedule> PolySchedule(double power, std::int64_t max_iteration);
/// rate · decay_rate ^ (iteration / decay_step); with `staircase` the quotient is a whole number.
ORCA_API std::shared_ptr<Schedule> ExponentialSchedule(std::int64_t decay_step, double decay_rate,
                                                       bool staircase);
/// rate · gamma ^ (iteration / step_size), a whole number.
ORCA_API std::shared_ptr<Schedule> StepSchedule(std::int64_t step_size, double gamma);
/// rate · gamma ^ (how many of `step_sizes`, which ascend, are reached).
ORCA_API std::shared_ptr<Schedule> MultiStepSchedule(std::vector<std::int64_t> step_sizes,
                                                     double gamma);
/// rate + delta · iteration.
ORCA_API std::shared_ptr<Schedule> WarmupSchedule(double delta);

struct PlateauOptions {
  std::string monitor = "score";  ///< "Loss" or "score".
  double factor = 0.1;            ///< What the rate is multiplied by; below 1.
  std::int64_t patience = 10;     ///< Epochs without improvement before that.
  std::string mode = "min";       ///< "min": smaller is better; "max": larger is.
  double epsilon = 1e-4;          ///< An improvement is more than this.
  std::int64_t cooldown = 0;      ///< Epochs after a reduction that do not count.
  double min_rate = 0;
};
/// Multiplies the rate by `factor` when the monitored number stops improving. Looks once an epoch,
/// at its beginning; throws kFailedPrecondition when there is no number yet.
ORCA_API std::shared_ptr<Schedule> PlateauSchedule(PlateauOptions options);

/// A part of a sequence.
struct ScheduleSpan {
  std::shared_ptr<Schedule> schedule;
  std::int64_t iterations = 0;
};
/// One after the other. A schedule takes over in the iteration after its predecessor's last one,
/// with the predecessor's last rate as its base; the last one goes on for ever.
ORCA_API std::shared_ptr<Schedule> SequentialSchedule(std::vector<ScheduleSpan> parts);

}  // namespace orca::learn
