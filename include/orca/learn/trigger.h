// When something happens during training: a validation, a checkpoint, the end.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "orca/core/export.h"

namespace orca::learn {

/// How far training is. Counts as BigDL did, whose formulas the triggers keep: both counters begin
/// at 1 and grow when an iteration or an epoch has ended, so MaxEpoch(n) ends after n epochs.
struct TrainProgress {
  std::int64_t epoch = 1;
  std::int64_t iteration = 1;
  /// Of the last iteration. A number that nobody knows yet is NaN, and makes no trigger fire.
  double loss = std::numeric_limits<double>::quiet_NaN();
  double score = std::numeric_limits<double>::quiet_NaN();  ///< Of the last validation.
};

/// Says whether it is time. One is asked after every iteration, by one thread, and may remember
/// what it saw: two trainings need two of them.
class ORCA_API Trigger {
 public:
  Trigger() = default;
  Trigger(const Trigger&) = delete;
  Trigger& operator=(const Trigger&) = delete;
  virtual ~Trigger() = default;

  virtual bool Fires(const TrainProgress& progress) = 0;
};

/// epoch > `epochs`. The functions below throw kInvalidArgument for a count that is not positive.
ORCA_API std::shared_ptr<Trigger> MaxEpoch(std::int64_t epochs);
/// iteration > `iterations`.
ORCA_API std::shared_ptr<Trigger> MaxIteration(std::int64_t iterations);
/// Whenever the epoch has grown since it was asked last; not the first time.
ORCA_API std::shared_ptr<Trigger> EveryEpoch();
/// iteration is not 0, and a multiple of `interval`.
ORCA_API std::shared_ptr<Trigger> SeveralIteration(std::int64_t interval);
/// score > `score`.
ORCA_API std::shared_ptr<Trigger> MaxScore(double score);
/// loss < `loss`.
ORCA_API std::shared_ptr<Trigger> MinLoss(double loss);

/// All of them, of which there must be one or more. Every one is asked every time, so that one that
/// remembers misses nothing.
ORCA_API std::shared_ptr<Trigger> And(std::vector<std::shared_ptr<Trigger>> triggers);
/// Any of them, asked in the same way.
ORCA_API std::shared_ptr<Trigger> Or(std::vector<std::shared_ptr<Trigger>> triggers);

}  // namespace orca::learn
