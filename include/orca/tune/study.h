// A search: trials are asked for, run by the caller, and told.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "orca/core/export.h"
#include "orca/tune/sampler.h"
#include "orca/tune/space.h"

namespace orca::tune {

enum class Mode { kMin, kMax };

struct Report {
  std::int64_t step = 0;
  double value = 0;
};

struct Trial {
  std::int64_t number = 0;
  Point point = {};
  TrialState state = TrialState::kRunning;
  double value = std::numeric_limits<double>::quiet_NaN();  ///< Once it is finished.
  std::vector<Report> reports = {};                         ///< In the order of their steps.
  std::string error = {};                                   ///< Why it failed.
};

struct StudyOptions {
  Mode mode = Mode::kMin;
  std::string search_alg = "auto";
  /// Points that the first trials take; what is NaN in them is drawn.
  std::vector<Point> points = {};
  SearchOptions search = {};
  /// 0: proposals use all that is known. k: those of trials n*k .. n*k+k-1 use the trials before
  /// n*k only, so that the study is the same for any number of parallel trials.
  std::int64_t batch = 0;
  /// Whether a point of a finite space may come twice. With a grid in the space it always may.
  bool allow_duplicates = false;
};

/// Proposes trials and remembers what became of them. Any thread may call it.
///
/// The next proposal is a function of the seed, the trial's number and the trials so far.
///
/// ```cpp
/// Study study(Space({LogUniform("lr", 1e-5, 1e-1), Integer("layers", 1, 5)}), {});
/// while (study.size() < 50) {
///   const std::optional<Trial> trial = study.Ask();
///   if (!trial) break;  // All points have been tried.
///   study.Tell(trial->number, Loss(study.Config(*trial)));
/// }
/// ```
class ORCA_API Study {
 public:
  Study(Space space, StudyOptions options);
  ~Study();
  Study(const Study&) = delete;
  Study& operator=(const Study&) = delete;

  const Space& space() const;
  /// What proposes, e.g. "tpe".
  const std::string& algorithm() const;
  /// Why that one, when the name does not say it; or empty.
  const std::string& note() const;

  /// Whether Ask may be called: with `batch`, all trials of the batches before must have ended.
  bool CanAsk() const;
  /// Starts the next trial; nullopt: all points of a finite space have been tried. Throws
  /// kFailedPrecondition when CanAsk() is false.
  std::optional<Trial> Ask();
  /// Ends a running trial with its value; one that is not finite makes it a failed one.
  void Tell(std::int64_t number, double value);
  /// Ends a running trial that has no value. It never wins.
  void Fail(std::int64_t number, const std::string& error);
  /// Ends a running trial that a scheduler stopped; its last report is what is known of it.
  void Prune(std::int64_t number);
  /// Notes a value of a running trial. Steps ascend, from 1.
  void AddReport(std::int64_t number, std::int64_t step, double value);
  /// Adds a trial of another study, so that proposals know of it. It gets the next number, which is
  /// returned.
  std::int64_t Add(const Trial& trial);
  /// Puts a trial of this study back, after a restart: all in the order of their numbers, before
  /// the first Ask. What still runs may be told afterwards.
  void Restore(const Trial& trial);

  /// How many trials have been started or added.
  std::int64_t size() const;
  Trial At(std::int64_t number) const;
  std::vector<Trial> Trials() const;
  /// The finished trial with the best value, of equals the first; nullopt: there is none.
  std::optional<Trial> Best() const;
  /// The configuration of a trial, by the names of the parameters that exist in it.
  std::map<std::string, Value> Config(const Trial& trial) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace orca::tune
