#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "tune/schedulers/make.h"

namespace orca::tune {
namespace {

struct HyperBandOptions {
  std::int64_t max_t = 81;
  double factor = 3;
  bool stop_last_trials = true;
  bool ray_milestones = false;
  bool largest_first = false;
};

/// Brackets of successive halving, one after the other, from many short trials to few long ones.
/// A bracket is halved when it is full, or no new trial will come, and all its trials wait.
class HyperBand final : public SchedulerBase {
 public:
  HyperBand(const HyperBandOptions& hyperband, const SchedulerOptions& options)
      : SchedulerBase(hyperband.largest_first ? "hb_bohb" : "hyperband", options.maximize),
        options_(hyperband) {
    const double halvings =
        std::log(static_cast<double>(hyperband.max_t)) / std::log(hyperband.factor);
    const int most = static_cast<int>(std::lround(halvings));
    for (int s = 0; s <= most; ++s) {
      const double share = std::pow(options_.factor, s);
      const Shape shape{
          .halvings = s,
          .trials = static_cast<std::int64_t>(
              std::ceil(static_cast<double>(most + 1) / (s + 1) * share - 1e-9)),
          .first = static_cast<std::int64_t>(static_cast<double>(hyperband.max_t) / share + 1e-9)};
      if (shape.first > 0) shapes_.push_back(shape);
    }
    if (options_.largest_first) std::reverse(shapes_.begin(), shapes_.end());
  }

 private:
  struct Shape {
    int halvings;
    std::int64_t trials;
    std::int64_t first;  // milestone
  };
  struct Bracket {
    std::int64_t started = 0;
    int halved = 0;
    std::int64_t milestone = 0;
    std::map<std::int64_t, double> waiting;  // live trials at the milestone, with their scores
    std::int64_t live = 0;
  };

  const Shape& ShapeOf(std::size_t bracket) const { return shapes_[bracket % shapes_.size()]; }
  bool IsLast(std::size_t index) const {
    return brackets_[index].halved >= ShapeOf(index).halvings;
  }

  void OnStart(std::int64_t trial, std::string_view /*config*/) override {
    if (brackets_.empty() || brackets_.back().started >= ShapeOf(brackets_.size() - 1).trials) {
      brackets_.emplace_back();
      brackets_.back().milestone = ShapeOf(brackets_.size() - 1).first;
    }
    bracket_of_[trial] = brackets_.size() - 1;
    ++brackets_.back().started;
    ++brackets_.back().live;
  }

  Decision OnReport(std::int64_t trial, std::int64_t step, double score) override {
    const std::size_t index = bracket_of_.at(trial);
    Bracket& bracket = brackets_[index];
    if (IsLast(index)) {
      const bool ends = options_.stop_last_trials && step >= bracket.milestone;
      return ends ? Decision::kStop : Decision::kContinue;
    }
    if (step < bracket.milestone) return Decision::kContinue;
    const double worst = -std::numeric_limits<double>::infinity();
    reported_ = std::isnan(score) ? worst : score;
    return Decision::kPause;
  }

  void OnPause(std::int64_t trial) override {
    brackets_[bracket_of_.at(trial)].waiting[trial] = reported_;
  }

  void OnEnd(std::int64_t trial) override {
    Bracket& bracket = brackets_[bracket_of_.at(trial)];
    bracket.waiting.erase(trial);
    --bracket.live;
  }

  Task OnNext(bool may_start) override {
    for (std::size_t i = first_open_; i < brackets_.size() && tasks_.empty(); ++i)
      Halve(i, may_start);
    while (first_open_ < brackets_.size() && brackets_[first_open_].live == 0 &&
           IsFull(first_open_))
      ++first_open_;
    while (!tasks_.empty() && HasEnded(tasks_.front().first)) tasks_.pop_front();
    if (!tasks_.empty()) {
      const auto [trial, goes_on] = tasks_.front();
      tasks_.pop_front();
      return {.kind = goes_on ? Task::Kind::kResume : Task::Kind::kStop, .trial = trial};
    }
    return {.kind = may_start ? Task::Kind::kStart : Task::Kind::kWait};
  }

  bool IsFull(std::size_t index) const { return brackets_[index].started >= ShapeOf(index).trials; }

  void Halve(std::size_t index, bool may_start) {
    Bracket& bracket = brackets_[index];
    const auto waiting = static_cast<std::int64_t>(bracket.waiting.size());
    if (waiting == 0 || waiting < bracket.live || (may_start && !IsFull(index))) return;
    ++bracket.halved;
    Advance(bracket);
    std::vector<std::pair<double, std::int64_t>> order;  // the best first, of equals the older
    for (const auto& [trial, score] : bracket.waiting) order.emplace_back(-score, trial);
    std::sort(order.begin(), order.end());
    const auto keep = static_cast<std::size_t>(Keep(bracket));
    for (std::size_t i = keep; i < order.size(); ++i) tasks_.emplace_back(order[i].second, false);
    for (std::size_t i = 0; i < std::min(keep, order.size()); ++i)
      tasks_.emplace_back(order[i].second, true);
    bracket.waiting.clear();
  }

  // Of the n trials that began, n / factor^i are left after i halvings: rounded down as in the
  // paper, or up in each halving as Ray does.
  std::int64_t Keep(const Bracket& bracket) const {
    auto left = static_cast<double>(bracket.started);
    if (!options_.ray_milestones) {
      left = std::floor(left / std::pow(options_.factor, bracket.halved) + 1e-9);
      return std::max<std::int64_t>(1, static_cast<std::int64_t>(left));
    }
    for (int i = 0; i < bracket.halved; ++i) left = std::ceil(left / options_.factor);
    return static_cast<std::int64_t>(left);
  }

  void Advance(Bracket& bracket) const {
    const double longer = static_cast<double>(bracket.milestone) * options_.factor + 1e-9;
    const std::int64_t most =
        options_.ray_milestones ? options_.max_t - bracket.milestone : options_.max_t;
    bracket.milestone = std::min(static_cast<std::int64_t>(longer), most);
  }

  void Save(Json& state) const override {
    state["brackets"] = Json::array();
    for (const auto& bracket : brackets_) {
      auto waiting = Json::array();
      for (const auto& [trial, score] : bracket.waiting) waiting.push_back({trial, ToJson(score)});
      state["brackets"].push_back({{"started", bracket.started},
                                   {"halved", bracket.halved},
                                   {"milestone", bracket.milestone},
                                   {"waiting", std::move(waiting)},
                                   {"live", bracket.live}});
    }
    state["bracket_of"] = Json::array();
    for (const auto& [trial, bracket] : bracket_of_)
      state["bracket_of"].push_back({trial, bracket});
    state["tasks"] = tasks_;
    state["first_open"] = first_open_;
  }

  void Load(const Json& state) override {
    brackets_.clear();
    for (const auto& saved : state.at("brackets")) {
      Bracket bracket;
      saved.at("started").get_to(bracket.started);
      saved.at("halved").get_to(bracket.halved);
      saved.at("milestone").get_to(bracket.milestone);
      saved.at("live").get_to(bracket.live);
      for (const auto& entry : saved.at("waiting"))
        bracket.waiting[entry.at(0).get<std::int64_t>()] = ToDouble(entry.at(1));
      brackets_.push_back(std::move(bracket));
    }
    bracket_of_.clear();
    for (const auto& entry : state.at("bracket_of"))
      bracket_of_[entry.at(0).get<std::int64_t>()] = entry.at(1).get<std::size_t>();
    tasks_.clear();
    for (const auto& entry : state.at("tasks"))
      tasks_.emplace_back(entry.at(0).get<std::int64_t>(), entry.at(1).get<bool>());
    state.at("first_open").get_to(first_open_);
  }

  HyperBandOptions options_;
  std::vector<Shape> shapes_;  // of one round of brackets, in their order
  std::vector<Bracket> brackets_;
  std::map<std::int64_t, std::size_t> bracket_of_;
  std::deque<std::pair<std::int64_t, bool>> tasks_;  // trial, whether it goes on
  std::size_t first_open_ = 0;
  double reported_ = 0;  // what OnPause() needs
};

MadeScheduler Make(Parameters& parameters, const SchedulerOptions& options, bool largest_first) {
  const HyperBandOptions hyperband{
      .max_t = parameters.Int("max_t", 81, 1),
      .factor = parameters.Number("reduction_factor", 3, 1.0000001, 1e9),
      .stop_last_trials = parameters.Bool("stop_last_trials", true),
      .ray_milestones = parameters.Bool("ray_milestones", false),
      .largest_first = largest_first};
  auto made = std::make_unique<HyperBand>(hyperband, options);
  if (options.epochs > 0 && hyperband.max_t > options.epochs)
    made->AddNote(
        fmt::format("{} with max_t {} plans for more than the {} epochs of a trial; give max_t={}",
                    parameters.scheduler(), hyperband.max_t, options.epochs, options.epochs));
  return made;
}

}  // namespace

MadeScheduler MakeHyperBand(Parameters& parameters, const SchedulerOptions& options) {
  return Make(parameters, options, false);
}

MadeScheduler MakeBohbHyperBand(Parameters& parameters, const SchedulerOptions& options) {
  return Make(parameters, options, true);
}

}  // namespace orca::tune
