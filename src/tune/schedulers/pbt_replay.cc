#include <fmt/format.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "orca/core/error.h"
#include "orca/core/nesting.h"
#include "tune/schedulers/make.h"

namespace orca::tune {
namespace {

struct Change {
  std::int64_t step;
  std::string config;
};

struct Policy {
  std::string first_config;
  std::vector<Change> changes;
};

// From the last line back, as long as each line's source is the trial of the line before: what lies
// before that was overwritten.
Policy ReadPolicy(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    throw Error(Code::kInvalidArgument,
                fmt::format("policy_file {} cannot be read; give a pbt_policy_*.txt of a study "
                            "that ran with scheduler pbt",
                            path));
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) continue;
    lines.push_back(IsShallowJson(line) ? Json::parse(line, nullptr, false) : Json());
    const Json& read = lines.back();
    if (!read.is_array() || read.size() != 6 || !read[3].is_number_integer() ||
        !read[4].is_object() || !read[5].is_object())
      throw Error(Code::kInvalidArgument,
                  fmt::format("line {} of policy_file {} is not [old tag, new tag, old step, new "
                              "step, old configuration, new configuration]",
                              lines.size(), path));
  }
  if (lines.empty())
    throw Error(Code::kInvalidArgument,
                fmt::format("policy_file {} has no line: nothing was changed", path));
  Policy policy;
  Json last_source;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (!last_source.is_null() && (*line)[0] != last_source) break;
    last_source = (*line)[1];
    policy.first_config = (*line)[4].dump();
    policy.changes.insert(policy.changes.begin(),
                          {(*line)[3].get<std::int64_t>(), (*line)[5].dump()});
  }
  return policy;
}

/// One trial that takes the configurations of a line of descent, each from its step on.
class PbtReplay final : public SchedulerBase {
 public:
  PbtReplay(Policy policy, const SchedulerOptions& options)
      : SchedulerBase("pbt_replay", options.maximize), policy_(std::move(policy)) {}

  bool changes_configs() const override { return true; }

 private:
  Decision OnReport(std::int64_t /*trial*/, std::int64_t step, double /*score*/) override {
    const bool changes = done_ < policy_.changes.size() && step >= policy_.changes[done_].step;
    return changes ? Decision::kPause : Decision::kContinue;
  }

  void OnStart(std::int64_t trial, std::string_view /*config*/) override {
    if (trial_ >= 0)
      throw Error(Code::kFailedPrecondition,
                  "scheduler pbt_replay runs one trial; give n_sampling=1");
    trial_ = trial;
  }

  Task OnNext(bool may_start) override {
    if (trial_ < 0 && may_start)
      return {.kind = Task::Kind::kStart, .config = policy_.first_config};
    if (paused() == 0) return {.kind = Task::Kind::kWait};
    return {
        .kind = Task::Kind::kResume, .trial = trial_, .config = policy_.changes[done_++].config};
  }

  void Save(Json& state) const override {
    state["trial"] = trial_;
    state["done"] = done_;
  }
  void Load(const Json& state) override {
    state.at("trial").get_to(trial_);
    state.at("done").get_to(done_);
  }

  Policy policy_;
  std::int64_t trial_ = -1;
  std::size_t done_ = 0;
};

}  // namespace

MadeScheduler MakePbtReplay(Parameters& parameters, const SchedulerOptions& options) {
  const std::string file = parameters.Text("policy_file", "");
  if (file.empty()) parameters.Refuse("policy_file", "given; it is a pbt_policy_*.txt");
  return std::make_unique<PbtReplay>(ReadPolicy(file), options);
}

}  // namespace orca::tune
