#include <fmt/format.h>

#include "orca/core/error.h"
#include "tune/schedulers/base.h"

namespace orca::tune {

const char* DecisionName(Decision decision) {
  switch (decision) {
    case Decision::kContinue:
      return "continue";
    case Decision::kSave:
      return "save";
    case Decision::kPause:
      return "pause";
    case Decision::kStop:
      break;
  }
  return "stop";
}

Scheduler::~Scheduler() = default;

SchedulerBase::Trial& SchedulerBase::At(std::int64_t trial) {
  const auto found = trials_.find(trial);
  if (found == trials_.end())
    throw Error(Code::kInvalidArgument,
                fmt::format("the scheduler does not know trial {}; call Start first", trial));
  return found->second;
}

void SchedulerBase::SetStatus(Trial& trial, Status status) {
  const auto count = [this](Status which) -> std::int64_t* {
    if (which == Status::kRunning) return &running_;
    return which == Status::kPaused ? &paused_ : nullptr;
  };
  if (auto* old = count(trial.status)) --*old;
  trial.status = status;
  if (auto* now = count(status)) ++*now;
}

void SchedulerBase::Start(std::int64_t trial, std::string_view config) {
  if (trials_.contains(trial))
    throw Error(Code::kFailedPrecondition,
                fmt::format("trial {} was started before; start each once", trial));
  OnStart(trial, config);  // may refuse it
  trials_[trial] = {};
  ++running_;
}

Decision SchedulerBase::Report(std::int64_t trial, std::int64_t step, double value) {
  return Decide(trial, step, value, std::nullopt);
}

void SchedulerBase::Note(std::int64_t trial, std::int64_t step, double value, Decision decision) {
  Decide(trial, step, value, decision);
}

Decision SchedulerBase::Decide(std::int64_t trial, std::int64_t step, double value,
                               std::optional<Decision> decided) {
  Trial& known = At(trial);
  if (step < 1)
    throw Error(Code::kInvalidArgument,
                fmt::format("step {} of trial {} is below 1; the first report has 1", step, trial));
  if (known.status == Status::kEnded) return Decision::kStop;
  if (known.status == Status::kPaused) return Decision::kPause;
  if (step < known.step) return Decision::kContinue;
  if (step == known.step) return known.last;
  known.step = step;
  const double score = maximize_ ? value : -value;
  known.last = OnReport(trial, step, score);
  if (decided) known.last = *decided;
  if (known.last == Decision::kSave) OnSave(trial);
  if (known.last == Decision::kPause) {
    SetStatus(known, Status::kPaused);
    OnPause(trial);
  }
  if (known.last == Decision::kStop) End(trial);
  return known.last;
}

Task SchedulerBase::Next(bool may_start) {
  Task task = OnNext(may_start);
  if (task.kind == Task::Kind::kResume) {
    Trial& known = trials_.at(task.trial);
    SetStatus(known, Status::kRunning);
    known.last = Decision::kContinue;
  }
  if (task.kind == Task::Kind::kStop) End(task.trial);
  return task;
}

void SchedulerBase::End(std::int64_t trial) {
  Trial& known = At(trial);
  if (known.status == Status::kEnded) return;
  SetStatus(known, Status::kEnded);
  OnEnd(trial);
}

std::string SchedulerBase::State() const {
  Json state = Json::object();
  Save(state);
  state["scheduler"] = kind_;
  auto& trials = state["trials"] = Json::array();
  for (const auto& [number, trial] : trials_)
    trials.push_back(
        {number, static_cast<int>(trial.status), trial.step, static_cast<int>(trial.last)});
  return state.dump();
}

void SchedulerBase::Restore(std::string_view text) {
  try {
    const Json state = Json::parse(text);
    if (const auto kind = state.at("scheduler").get<std::string>(); kind != kind_)
      throw Error(Code::kInvalidArgument,
                  fmt::format("a state of scheduler {} does not fit scheduler {}; resume a study "
                              "with the scheduler that it began with",
                              kind, kind_));
    trials_.clear();
    running_ = paused_ = 0;
    for (const auto& entry : state.at("trials")) {
      Trial trial{.status = static_cast<Status>(entry.at(1).get<int>()),
                  .step = entry.at(2).get<std::int64_t>(),
                  .last = static_cast<Decision>(entry.at(3).get<int>())};
      running_ += trial.status == Status::kRunning ? 1 : 0;
      paused_ += trial.status == Status::kPaused ? 1 : 0;
      trials_.emplace(entry.at(0).get<std::int64_t>(), trial);
    }
    Load(state);
  } catch (const Json::exception& error) {
    throw Error(Code::kInvalidArgument,
                fmt::format("the state of scheduler {} is damaged: {}", kind_, error.what()));
  }
}

}  // namespace orca::tune
