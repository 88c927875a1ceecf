// What all schedulers share: which trials there are, and reports that come again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "orca/tune/scheduler.h"
#include "tune/schedulers/json.h"

namespace orca::tune {

/// Counts the trials and sees that a scheduler hears of every report and of every end once.
class SchedulerBase : public Scheduler {
 public:
  SchedulerBase(std::string kind, bool maximize) : kind_(std::move(kind)), maximize_(maximize) {}

  void Start(std::int64_t trial, std::string_view config) final;
  Decision Report(std::int64_t trial, std::int64_t step, double value) final;
  void Note(std::int64_t trial, std::int64_t step, double value, Decision decision) final;
  Task Next(bool may_start) final;
  void Finished(std::int64_t trial) final { End(trial); }
  void Failed(std::int64_t trial) final { End(trial); }
  std::string State() const final;
  void Restore(std::string_view state) final;
  bool changes_configs() const override { return false; }
  bool may_pause() const override { return true; }
  const std::vector<std::string>& notes() const final { return notes_; }

  void AddNote(std::string note) { notes_.push_back(std::move(note)); }

 protected:
  /// `score` is the value, negated where smaller is better.
  virtual Decision OnReport(std::int64_t trial, std::int64_t step, double score) = 0;
  virtual Task OnNext(bool may_start) {
    return {.kind = may_start ? Task::Kind::kStart : Task::Kind::kWait};
  }
  virtual void OnStart(std::int64_t /*trial*/, std::string_view /*config*/) {}
  /// Its state is stored at the report that OnReport() has just seen.
  virtual void OnSave(std::int64_t /*trial*/) {}
  /// The same, and it pauses: only now does it wait for its turn.
  virtual void OnPause(std::int64_t /*trial*/) {}
  virtual void OnEnd(std::int64_t /*trial*/) {}
  virtual void Save(Json& /*state*/) const {}
  virtual void Load(const Json& /*state*/) {}

  /// The step of a trial's last report.
  std::int64_t Step(std::int64_t trial) const { return trials_.at(trial).step; }
  /// For a trial that took over another's state.
  void SetStep(std::int64_t trial, std::int64_t step) { trials_.at(trial).step = step; }
  bool HasEnded(std::int64_t trial) const { return trials_.at(trial).status == Status::kEnded; }
  std::int64_t running() const { return running_; }
  std::int64_t paused() const { return paused_; }

 private:
  enum class Status { kRunning, kPaused, kEnded };
  struct Trial {
    Status status = Status::kRunning;
    std::int64_t step = 0;  // of the last report
    Decision last = Decision::kContinue;
  };

  Trial& At(std::int64_t trial);
  Decision Decide(std::int64_t trial, std::int64_t step, double value,
                  std::optional<Decision> decided);
  void SetStatus(Trial& trial, Status status);
  void End(std::int64_t trial);

  std::string kind_;
  bool maximize_;
  std::map<std::int64_t, Trial> trials_;
  std::int64_t running_ = 0;
  std::int64_t paused_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace orca::tune
