#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "tune/schedulers/make.h"
#include "tune/schedulers/random.h"
#include "tune/schedulers/ranking.h"
#include "tune/schedulers/rungs.h"

namespace orca::tune {
namespace {

struct AshaOptions {
  double grace = 1;
  double max_t = 100;
  double factor = 4;
  int brackets = 1;
};

class AshaStopping final : public SchedulerBase {
 public:
  AshaStopping(const AshaOptions& asha, const SchedulerOptions& options)
      : SchedulerBase("async_hyperband/stopping", options.maximize),
        max_t_(asha.max_t),
        seed_(options.seed) {
    for (int s = 0; s < asha.brackets; ++s)
      brackets_.emplace_back(asha.grace, asha.max_t, asha.factor, s);
  }

  bool may_pause() const override { return false; }

 private:
  // A bracket is as likely as e to the number of its rungs.
  std::size_t Bracket(std::int64_t trial) const {
    double total = 0;
    for (const auto& bracket : brackets_) total += std::exp(static_cast<double>(bracket.size()));
    double left = Draws(seed_, static_cast<std::uint64_t>(trial), 0).Uniform() * total;
    for (std::size_t i = 0; i < brackets_.size(); ++i) {
      left -= std::exp(static_cast<double>(brackets_[i].size()));
      if (left < 0) return i;
    }
    return 0;
  }

  Decision OnReport(std::int64_t trial, std::int64_t step, double score) override {
    if (static_cast<double>(step) >= max_t_) return Decision::kStop;
    const bool stops = brackets_[Bracket(trial)].Stops(trial, step, score);
    return stops ? Decision::kStop : Decision::kContinue;
  }

  void Save(Json& state) const override {
    state["brackets"] = Json::array();
    for (const auto& bracket : brackets_) state["brackets"].push_back(bracket.Save());
  }
  void Load(const Json& state) override {
    for (std::size_t i = 0; i < brackets_.size(); ++i)
      brackets_[i].Load(state.at("brackets").at(i));
  }

  double max_t_;
  std::uint64_t seed_;
  std::vector<Rungs> brackets_;
};

/// Every trial pauses at every rung. A free worker takes the best that may go on, from the highest
/// rung that has one.
class AshaPromotion final : public SchedulerBase {
 public:
  AshaPromotion(const AshaOptions& asha, const SchedulerOptions& options)
      : SchedulerBase("async_hyperband/promotion", options.maximize),
        max_t_(asha.max_t),
        factor_(asha.factor) {
    for (double at = asha.grace; at < asha.max_t; at *= asha.factor)
      rungs_.push_back({.milestone = at, .all = {}, .waiting = {}});
  }

 private:
  struct Rung {
    double milestone;
    Ranking all;      // every trial that was here
    Ranking waiting;  // those that are still here
  };
  struct Place {
    std::size_t next_rung = 0;
    double score = 0;  // at the rung before
  };

  Decision OnReport(std::int64_t trial, std::int64_t step, double score) override {
    const auto at = static_cast<double>(step);
    if (at >= max_t_) return Decision::kStop;
    auto& [next, last] = places_[trial];
    if (next >= rungs_.size() || at < rungs_[next].milestone) return Decision::kContinue;
    // With few reports a trial may pass several rungs at once.
    while (next + 1 < rungs_.size() && at >= rungs_[next + 1].milestone) ++next;
    if (std::isnan(score)) return Decision::kStop;
    last = score;
    rungs_[next].all.Insert(score, trial);
    ++next;
    return Decision::kPause;
  }

  void OnPause(std::int64_t trial) override {
    const Place& place = places_.at(trial);
    rungs_[place.next_rung - 1].waiting.Insert(place.score, trial);
  }

  Task OnNext(bool may_start) override {
    for (auto rung = rungs_.rbegin(); rung != rungs_.rend(); ++rung) {
      if (rung->waiting.size() == 0) continue;
      const auto promoted =
          static_cast<std::size_t>(std::floor(static_cast<double>(rung->all.size()) / factor_));
      const std::size_t best = rung->waiting.size() - 1;
      const double score = rung->waiting.score(best);
      const std::int64_t trial = rung->waiting.trial(best);
      if (rung->all.Rank(score, trial) + promoted < rung->all.size()) continue;
      rung->waiting.Erase(score, trial);
      return {.kind = Task::Kind::kResume, .trial = trial};
    }
    return {.kind = may_start ? Task::Kind::kStart : Task::Kind::kWait};
  }

  // What waits at a rung and is lost no longer waits; it still counts.
  void OnEnd(std::int64_t trial) override {
    const auto place = places_.find(trial);
    if (place == places_.end() || place->second.next_rung == 0) return;
    rungs_[place->second.next_rung - 1].waiting.Erase(place->second.score, trial);
  }

  void Save(Json& state) const override {
    state["rungs"] = Json::array();
    for (const auto& rung : rungs_)
      state["rungs"].push_back({rung.all.Save(), rung.waiting.Save()});
    state["places"] = Json::array();
    for (const auto& [trial, place] : places_)
      state["places"].push_back({trial, place.next_rung, ToJson(place.score)});
  }
  void Load(const Json& state) override {
    for (std::size_t i = 0; i < rungs_.size(); ++i) {
      rungs_[i].all.Load(state.at("rungs").at(i).at(0));
      rungs_[i].waiting.Load(state.at("rungs").at(i).at(1));
    }
    places_.clear();
    for (const auto& entry : state.at("places"))
      places_[entry.at(0).get<std::int64_t>()] = {.next_rung = entry.at(1).get<std::size_t>(),
                                                  .score = ToDouble(entry.at(2))};
  }

  double max_t_;
  double factor_;
  std::vector<Rung> rungs_;
  std::map<std::int64_t, Place> places_;
};

}  // namespace

MadeScheduler MakeAsha(Parameters& parameters, const SchedulerOptions& options) {
  AshaOptions asha;
  asha.grace = static_cast<double>(parameters.Int("grace_period", 1, 1));
  asha.max_t = static_cast<double>(parameters.Int("max_t", 100, 1));
  asha.factor = parameters.Number("reduction_factor", 4, 1.0000001, 1e9);
  asha.brackets = static_cast<int>(parameters.Int("brackets", 1, 1));
  const std::string form = parameters.Text("form", "stopping");
  if (asha.max_t < asha.grace) parameters.Refuse("max_t", "at least grace_period");
  if (form != "stopping" && form != "promotion")
    parameters.Refuse("form", "\"stopping\" or \"promotion\"");
  if (form == "promotion" && asha.brackets != 1)
    parameters.Refuse("brackets", "1, the only number of the promotion form");
  if (asha.brackets > 1 && Rungs(asha.grace, asha.max_t, asha.factor, asha.brackets - 1).size() < 1)
    parameters.Refuse("brackets", "small enough: the last one has no rung below max_t");
  MadeScheduler made;
  if (form == "promotion") made = std::make_unique<AshaPromotion>(asha, options);
  if (form == "stopping") made = std::make_unique<AshaStopping>(asha, options);
  if (options.epochs > 0 && asha.grace >= static_cast<double>(options.epochs))
    made->AddNote(fmt::format(
        "{} with grace_period {} stops no trial of {} epochs; give a smaller grace_period",
        parameters.scheduler(), asha.grace, options.epochs));
  return made;
}

}  // namespace orca::tune
