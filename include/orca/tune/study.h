// A search: trials are asked for, run by the caller, and told.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "orca/core/export.h"
#include "orca/tune/sampler.h"
#include "orca/tune/scheduler.h"
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
  /// Of one that Ask() gives again: the step whose stored state it goes on from; 0: none, it
  /// begins.
  std::int64_t resumed_step = 0;
  std::int64_t source = -1;  ///< Whose stored state that is; -1: its own.
  /// JSON, where a scheduler has changed the configuration; empty: `point` says it.
  std::string config = {};
  std::int64_t clones = 0;   ///< How often it took over another trial's state.
  std::int64_t retries = 0;  ///< How often it was run again after it crashed or hung.
  std::string memo = {};     ///< What the caller has stored with it.
  double started = 0;        ///< Seconds since 1970.
  double ended = 0;          ///< 0: it has not ended.
};

/// Where a study is kept.
struct StudyStorage {
  std::filesystem::path file = {};  ///< Empty: in memory only.
  std::string name = "study";
  std::string metric = "value";  ///< What its values are, for people.
  /// What the caller adds to every configuration, JSON.
  std::string constants = "{}";
  /// Goes on with the youngest study of that name, if there is one. It must have been begun with
  /// the same space, constants, metric, mode, seed and algorithms.
  bool resume = false;
  /// Every decision is on the disk before it is acted on: a study outlives the machine's power.
  bool full_sync = false;
};

struct StudyOptions {
  Mode mode = Mode::kMin;
  std::string search_alg = "auto";
  std::string scheduler = "fifo";
  std::string scheduler_parameters = "{}";  ///< JSON.
  /// What else a scheduler is made with; mode and seed are the study's. Whoever reports step
  /// `epochs` is through, and is not stopped there: tell it.
  SchedulerOptions scheduling;
  StudyStorage storage;
  /// Points that the first trials take; what is NaN in them is drawn.
  std::vector<Point> points = {};
  SearchOptions search;
  /// 0: proposals use all that is known. k: those of trials n*k .. n*k+k-1 use the trials before
  /// n*k only, so that the study is the same for any number of parallel trials.
  std::int64_t batch = 0;
  /// Whether a point of a finite space may come twice. With a grid in the space it always may.
  bool allow_duplicates = false;
  /// How often a trial that crashed or hung is run again.
  std::int64_t retries = 0;
  /// An older study: its finished trials are added to a study that begins. A file of studies, or a
  /// folder with one; its youngest study counts.
  std::filesystem::path warm_start = {};
  /// Seconds since 1970; empty: the system's clock.
  std::function<double()> clock = {};
};

/// How far a study is.
struct StudyProgress {
  std::array<std::int64_t, 5> counts{};  ///< Trials in each TrialState, without added ones.
  std::vector<Trial> running = {};       ///< At most as many as were asked for, by number.
  std::int64_t steps = 0;                ///< Of all trials that run or are paused.
  /// The best value or report of a trial that has not failed, with its number; -1: there is none.
  std::int64_t best = -1;
  double best_value = 0;
};

/// Proposes trials and remembers what became of them. Any thread may call it.
///
/// The next proposal is a function of the seed, the trial's number and the trials so far. What is
/// decided over a trial is stored before anybody hears of it: a study that is killed goes on with
/// no trial lost and none twice. When it cannot be stored, that and every later call throws: what
/// is in memory is ahead of the file, which is opened again.
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
  /// The end of a trial.
  struct Told {
    std::int64_t number = 0;
    double value = 0;
  };

  Study(Space space, StudyOptions options);
  ~Study();
  Study(const Study&) = delete;
  Study& operator=(const Study&) = delete;

  const Space& space() const;
  const StudyOptions& options() const;
  /// What proposes, e.g. "tpe".
  const std::string& algorithm() const;
  /// Why that one, when the name does not say it; or empty.
  const std::string& note() const;

  /// Whether trials may be told to pause or to save their state; see Scheduler.
  bool may_pause() const;
  /// Whether trials may get other configurations than the sampler's.
  bool changes_configs() const;
  /// Whether it matters for the next trials how others did; where it does not, they may be asked
  /// for ahead of time.
  bool learns() const;
  /// What the user should know of the scheduler.
  const std::vector<std::string>& scheduler_notes() const;

  /// Whether Ask may be called. It may not while the next batch waits for trials of the one before,
  /// or while the scheduler waits for trials that run.
  bool CanAsk();
  /// Gives a trial that was running when the study was stored last, goes on with one that was
  /// paused, or starts the next. nullopt: the study is over; all points of a finite space have been
  /// tried, or the scheduler starts no more. Throws kFailedPrecondition when CanAsk() is false.
  std::optional<Trial> Ask();
  /// As Ask(), but starts no new trial: nullopt when there is nothing to go on with.
  std::optional<Trial> AskAgain();
  /// Ends a running trial with its value; one that is not finite makes it a failed one.
  void Tell(std::int64_t number, double value);
  /// Tell() for trials that have ended, and Ask() behind it for the `wanted` next ones (once
  /// AskAgain() where that is 0), stored in one commit: for who runs some trials after the others.
  /// Fewer than wanted: there is nothing more to run now.
  std::vector<Trial> TellAndAsk(const std::vector<Told>& told, std::int64_t wanted = 1);
  /// Ends a running trial that has no value. It never wins.
  void Fail(std::int64_t number, const std::string& error);
  /// Decides over a running trial that crashed or hung behind `step`. True: it still runs, and its
  /// caller runs it again, from its last checkpoint or from the beginning. False: it has failed,
  /// since it was run again often enough, or met the same error twice at the same step.
  bool Retry(std::int64_t number, const std::string& error, std::int64_t step);
  /// Ends a running trial that a scheduler stopped; its last report is what is known of it.
  void Prune(std::int64_t number);
  /// Notes a value of a running trial and says what it does. Steps ascend, from 1; one that comes
  /// again, from a trial that went back to its checkpoint, keeps its first value. After kStop the
  /// trial has ended, after kPause it does not run any more.
  Decision AddReport(std::int64_t number, std::int64_t step, double value);
  /// The paused trials that the scheduler has stopped since the last call: their states can go.
  std::vector<std::int64_t> TakeStopped();
  /// Stores a text with a trial, in the place of the last one.
  void SetMemo(std::int64_t number, const std::string& memo);
  /// The same with the study.
  void SetMemo(const std::string& memo);
  /// Adds a trial of another study, so that proposals know of it. It gets the next number, which is
  /// returned.
  std::int64_t Add(const Trial& trial);
  /// Puts a trial of this study back that was kept elsewhere: all in the order of their numbers,
  /// before the first Ask. What still runs may be told afterwards.
  void Restore(const Trial& trial);

  /// How many trials have been started or added.
  std::int64_t size() const;
  /// How many of them are of other studies.
  std::int64_t added() const;
  std::string memo() const;
  /// What PBT has done, in its order; see PolicyFiles().
  std::vector<std::string> Policies() const;
  /// How far it is, with up to `running` of the trials that run.
  StudyProgress Progress(std::size_t running = 0) const;
  Trial At(std::int64_t number) const;
  std::vector<Trial> Trials() const;
  /// The finished trial with the best value, of equals the first; nullopt: there is none.
  std::optional<Trial> Best() const;
  /// The configuration of a trial, by the names of the parameters that exist in it.
  std::map<std::string, Value> Config(const Trial& trial) const;
  /// The same as JSON, with what a scheduler has changed.
  std::string ConfigText(const Trial& trial) const;

 private:
  struct State;
  class Turn;
  std::unique_ptr<State> state_;
};

/// The seed of the study that would be resumed; nullopt when there is none.
ORCA_API std::optional<std::uint64_t> StoredSeed(const std::filesystem::path& file,
                                                 const std::string& name);

}  // namespace orca::tune
