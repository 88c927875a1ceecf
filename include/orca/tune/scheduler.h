// Which trials go on, pause, stop, or begin anew from another's state.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "orca/core/export.h"

namespace orca::tune {

/// What a trial does after a report.
enum class Decision {
  kContinue,
  kSave,   ///< Goes on, after its state is stored: others may be cloned from it.
  kPause,  ///< Its state is stored, its worker is free; Next() says whether it goes on.
  kStop,
};

/// "continue", "save", "pause" or "stop".
ORCA_API const char* DecisionName(Decision decision);

/// What a free worker does.
struct Task {
  enum class Kind {
    kStart,   ///< A new trial.
    kResume,  ///< A paused trial.
    kStop,    ///< A paused trial will not go on: its state can go. Costs no worker: ask again.
    kWait,    ///< Nothing now. When no trial is running either, the study is over.
  };
  Kind kind = Kind::kWait;
  std::int64_t trial = -1;  ///< Of kResume and kStop.
  /// JSON. Empty: the sampler's configuration (kStart), the trial's own (kResume).
  std::string config;
  /// The trial whose stored state it takes over, of `source_step`; -1: its own.
  std::int64_t source = -1;
  std::int64_t source_step = 0;
  /// With a source: [trial, source, step of the trial, step of the source, configuration of the
  /// source, new configuration], as JSON; see PolicyFiles().
  std::string policy;
};

/// Decides over trials by their reports. It reads no clock and draws by counters: the same calls
/// give the same decisions, and so does a scheduler that State() was restored into.
///
/// A trial is begun with Start(), ends with Finished(), Failed() or a decision to stop. A report
/// that comes again, after a trial went back to its checkpoint, gets the decision that it got.
/// One thread.
class ORCA_API Scheduler {
 public:
  Scheduler() = default;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  virtual ~Scheduler();

  /// Trial `trial` begins with `config` (JSON).
  virtual void Start(std::int64_t trial, std::string_view config) = 0;
  /// The metric of `trial` after `step` epochs.
  virtual Decision Report(std::int64_t trial, std::int64_t step, double value) = 0;
  /// The same when the study knows what the trial does, as it did so in a life before, or since it
  /// is through: it continues, saves or pauses. What stopped there ends with Finished().
  virtual void Note(std::int64_t trial, std::int64_t step, double value, Decision decision) = 0;
  /// What a free worker does; `may_start`: the study has room for one more new trial.
  virtual Task Next(bool may_start) = 0;
  /// It reached its last epoch, or another rule ended it: whatever was decided over its last
  /// report. Its reports still count.
  virtual void Finished(std::int64_t trial) = 0;
  /// It crashed or was lost.
  virtual void Failed(std::int64_t trial) = 0;

  /// All that it knows, as JSON.
  virtual std::string State() const = 0;
  /// Puts back what State() of a scheduler with the same options gave; throws kInvalidArgument when
  /// it is of another kind or damaged.
  virtual void Restore(std::string_view state) = 0;

  /// Whether trials may get other configurations than the sampler's.
  virtual bool changes_configs() const = 0;
  /// Whether it may decide that a trial pauses or saves its state.
  virtual bool may_pause() const = 0;
  /// Whether reports matter to it: else all trials are started in turn, and run to their ends.
  virtual bool decides() const { return true; }

  /// What the user should know: names that run as another algorithm, settings that never act.
  virtual const std::vector<std::string>& notes() const = 0;
};

/// What a scheduler is made with, beside its name and parameters.
struct SchedulerOptions {
  bool maximize = false;    ///< Larger values are better.
  std::uint64_t seed = 0;   ///< Of its draws.
  std::int64_t epochs = 0;  ///< Of a whole trial, to warn of settings that never act; 0: not known.
  /// Parameters that the scheduler does not know give a note, not an error.
  bool ignore_unknown = false;
  /// PBT: new values, as JSON, for the keys ("a/b") whose mutation is null in the parameters: from
  /// 64 random bits.
  std::map<std::string, std::function<std::string(std::uint64_t random)>> draws;
  /// PBT: custom_explore_fn, from the changed configuration of trial `source` to another one.
  std::function<std::string(const std::string& config, std::int64_t source)> explore;
};

/// pbt_global.txt and pbt_policy_<trial>.txt by their names, from all lines that PBT gave. A
/// trial's own has its line of descent, the oldest change first: what scheduler pbt_replay reads.
ORCA_API std::map<std::string, std::string> PolicyFiles(const std::vector<std::string>& policies);

/// A name of `scheduler` and its parameters.
struct SchedulerName {
  std::string_view name;
  std::string_view defaults;  ///< JSON
  std::string_view what;
};
/// All names, the ones that mean the same side by side.
ORCA_API const std::vector<SchedulerName>& SchedulerNames();

/// Makes a scheduler by its name, in any case; "" and "none" are "fifo". `parameters` is a JSON
/// object. Throws kInvalidArgument for a name (listing the known ones), a parameter or a value that
/// does not exist.
ORCA_API std::unique_ptr<Scheduler> MakeScheduler(std::string_view name,
                                                  std::string_view parameters = "{}",
                                                  const SchedulerOptions& options = {});

}  // namespace orca::tune
