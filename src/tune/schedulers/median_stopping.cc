#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tune/schedulers/make.h"

namespace orca::tune {
namespace {

struct MedianOptions {
  std::int64_t grace_period = 60;
  std::int64_t min_samples_required = 3;
  std::int64_t min_time_slice = 0;
  bool hard_stop = true;
};

/// A trial stops when its best score is below the median of the other trials' means up to its step.
class MedianStopping final : public SchedulerBase {
 public:
  MedianStopping(const MedianOptions& median, const SchedulerOptions& options)
      : SchedulerBase("median_stopping_rule", options.maximize), options_(median) {}

 private:
  struct History {
    std::vector<std::pair<std::int64_t, double>> sums;  // step, sum of the scores from grace on
    double best = -std::numeric_limits<double>::infinity();
    std::int64_t step = 0;
    std::int64_t last_pause = 0;
    bool was_stopped = false;  // and goes on, without hard_stop
  };

  static constexpr double kNoMean = std::numeric_limits<double>::quiet_NaN();

  // NaN when the trial has no report from the grace period to `step`.
  static double MeanUpTo(const History& history, std::int64_t step) {
    const auto end =
        std::upper_bound(history.sums.begin(), history.sums.end(), step,
                         [](std::int64_t limit, const auto& entry) { return limit < entry.first; });
    if (end == history.sums.begin()) return kNoMean;
    return (end - 1)->second / static_cast<double>(end - history.sums.begin());
  }

  static void Insert(std::vector<double>& means, double mean) {
    if (std::isfinite(mean)) means.insert(std::upper_bound(means.begin(), means.end(), mean), mean);
  }

  Decision OnReport(std::int64_t trial, std::int64_t step, double score) override {
    History& mine = histories_[trial];
    if (mine.was_stopped) return Decision::kContinue;
    const std::int64_t before = mine.step;
    mine.step = step;
    if (!std::isnan(score)) mine.best = std::max(mine.best, score);
    if (step >= options_.grace_period)
      mine.sums.emplace_back(step, (mine.sums.empty() ? 0 : mine.sums.back().second) + score);
    // The means at the steps that this trial has just passed.
    for (auto at = means_.upper_bound(before); at != means_.end() && at->first <= step; ++at)
      Insert(at->second, MeanUpTo(mine, at->first));
    if (step < options_.grace_period) return Decision::kContinue;
    return Judge(MeansAt(step), MeanUpTo(mine, step), mine, step);
  }

  // The means of all trials that have come as far as `step`, ascending.
  const std::vector<double>& MeansAt(std::int64_t step) {
    const auto [found, is_new] = means_.try_emplace(step);
    if (is_new)
      for (const auto& [trial, history] : histories_)
        if (history.step >= step) Insert(found->second, MeanUpTo(history, step));
    return found->second;
  }

  Decision Judge(const std::vector<double>& means, double own, History& mine, std::int64_t step) {
    const bool has_own = std::isfinite(own);
    const std::size_t others = means.size() - (has_own ? 1 : 0);
    if (others < static_cast<std::size_t>(options_.min_samples_required)) {
      const bool yields =
          step - mine.last_pause > options_.min_time_slice && (paused() > 0 || may_start_);
      return yields ? Decision::kPause : Decision::kContinue;
    }
    const auto skipped = has_own ? std::lower_bound(means.begin(), means.end(), own) - means.begin()
                                 : static_cast<std::ptrdiff_t>(means.size());
    const auto other = [&](std::size_t i) {
      return means[i + (static_cast<std::ptrdiff_t>(i) >= skipped ? 1 : 0)];
    };
    const double median =
        others % 2 == 1 ? other(others / 2) : (other(others / 2 - 1) + other(others / 2)) / 2;
    if (mine.best >= median) return Decision::kContinue;
    if (options_.hard_stop) return Decision::kStop;
    mine.was_stopped = true;
    return Decision::kPause;
  }

  // Trials that gave way go on in turn, when nothing new is to be started.
  Task OnNext(bool may_start) override {
    may_start_ = may_start;
    if (may_start) return {.kind = Task::Kind::kStart};
    const auto first = waiting_.begin();
    if (first == waiting_.end()) return {.kind = Task::Kind::kWait};
    const std::int64_t trial = first->second;
    waiting_.erase(first);
    return {.kind = Task::Kind::kResume, .trial = trial};
  }

  void OnPause(std::int64_t trial) override {
    histories_.at(trial).last_pause = Step(trial);
    waiting_.emplace(Step(trial), trial);
  }
  void OnEnd(std::int64_t trial) override { waiting_.erase({Step(trial), trial}); }

  void Save(Json& state) const override {
    state["may_start"] = may_start_;
    state["waiting"] = waiting_;
    state["histories"] = Json::array();
    for (const auto& [trial, history] : histories_) {
      auto sums = Json::array();
      for (const auto& [step, sum] : history.sums) sums.push_back({step, ToJson(sum)});
      state["histories"].push_back({{"trial", trial},
                                    {"sums", std::move(sums)},
                                    {"best", ToJson(history.best)},
                                    {"step", history.step},
                                    {"last_pause", history.last_pause},
                                    {"was_stopped", history.was_stopped}});
    }
  }

  void Load(const Json& state) override {
    state.at("may_start").get_to(may_start_);
    state.at("waiting").get_to(waiting_);
    histories_.clear();
    means_.clear();  // built again as they are asked for
    for (const auto& saved : state.at("histories")) {
      History& history = histories_[saved.at("trial").get<std::int64_t>()];
      for (const auto& entry : saved.at("sums"))
        history.sums.emplace_back(entry.at(0).get<std::int64_t>(), ToDouble(entry.at(1)));
      history.best = ToDouble(saved.at("best"));
      saved.at("step").get_to(history.step);
      saved.at("last_pause").get_to(history.last_pause);
      saved.at("was_stopped").get_to(history.was_stopped);
    }
  }

  MedianOptions options_;
  std::map<std::int64_t, History> histories_;
  std::map<std::int64_t, std::vector<double>> means_;        // by step
  std::set<std::pair<std::int64_t, std::int64_t>> waiting_;  // step, trial
  bool may_start_ = true;  // whether it was so when a worker last asked
};

}  // namespace

MadeScheduler MakeMedianStopping(Parameters& parameters, const SchedulerOptions& options) {
  const MedianOptions median{.grace_period = parameters.Int("grace_period", 60, 0),
                             .min_samples_required = parameters.Int("min_samples_required", 3, 1),
                             .min_time_slice = parameters.Int("min_time_slice", 0, 0),
                             .hard_stop = parameters.Bool("hard_stop", true)};
  auto made = std::make_unique<MedianStopping>(median, options);
  if (options.epochs > 0 && median.grace_period >= options.epochs)
    made->AddNote(
        fmt::format("{} with grace_period {} (epochs) stops no trial of {} epochs; give "
                    "a smaller grace_period",
                    parameters.scheduler(), median.grace_period, options.epochs));
  return made;
}

}  // namespace orca::tune
