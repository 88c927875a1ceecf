#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "orca/core/error.h"
#include "tune/schedulers/make.h"
#include "tune/schedulers/mutation.h"
#include "tune/schedulers/random.h"
#include "tune/schedulers/ranking.h"

namespace orca::tune {
namespace {

struct PbtOptions {
  std::int64_t interval = 60;
  std::int64_t burn_in = 0;
  double quantile = 0.25;
  bool synch = false;
};

/// Population based training. At every interval a trial of the lowest quantile pauses; it goes on
/// from the state of a random one of the highest quantile, with a changed configuration.
class Pbt final : public SchedulerBase {
 public:
  Pbt(const PbtOptions& pbt, Mutations mutations, const SchedulerOptions& options)
      : SchedulerBase("pbt", options.maximize),
        options_(pbt),
        mutations_(std::move(mutations)),
        seed_(options.seed) {}

  bool changes_configs() const override { return true; }

 private:
  struct Member {
    Json config;
    std::int64_t last_perturbation = 0;
    std::uint64_t changes = 0;    // how often it was cloned
    std::int64_t saved_step = 0;  // of its stored state; 0: there is none
    double score = 0;
    bool has_score = false;
    bool exploits = false;  // takes over another's state when it goes on
  };

  void OnStart(std::int64_t trial, std::string_view config) override {
    Json parsed = Json::parse(config.empty() ? "{}" : config, nullptr, false);
    if (!parsed.is_object())
      throw Error(
          Code::kInvalidArgument,
          fmt::format("the configuration {} of trial {} is not a JSON object", config, trial));
    members_[trial].config = std::move(parsed);
  }

  Decision OnReport(std::int64_t trial, std::int64_t step, double score) override {
    Member& member = members_.at(trial);
    if (step < options_.burn_in || step - member.last_perturbation < options_.interval)
      return Decision::kContinue;
    member.last_perturbation = step;
    SetScore(trial, member, score);
    if (options_.synch) return Decision::kPause;
    const std::size_t part = QuantileSize();
    const std::size_t rank = ranking_.Rank(member.score, trial);
    member.exploits = rank < part;
    const bool is_top = rank + part >= ranking_.size() && part > 0;
    member.saved_step = 0;  // A state of an older score is not worth a copy.
    // Others wait for a worker: they take turns.
    if (member.exploits || paused() > 0 || may_start_) return Decision::kPause;
    return is_top ? Decision::kSave : Decision::kContinue;
  }

  void SetScore(std::int64_t trial, Member& member, double score) {
    const double worst = -std::numeric_limits<double>::infinity();
    const double fresh = std::isnan(score) ? worst : score;
    if (member.has_score) {
      ranking_.Move(member.score, fresh, trial);
    } else {
      ranking_.Insert(fresh, trial);
    }
    member.has_score = true;
    member.score = fresh;
  }

  std::size_t QuantileSize() const {
    if (ranking_.size() <= 1) return 0;
    const auto part = static_cast<std::size_t>(
        std::ceil(static_cast<double>(ranking_.size()) * options_.quantile));
    return std::min(part, ranking_.size() / 2);
  }

  void OnSave(std::int64_t trial) override { members_.at(trial).saved_step = Step(trial); }

  void OnPause(std::int64_t trial) override {
    OnSave(trial);
    waiting_.emplace(Step(trial), trial);
  }

  void OnEnd(std::int64_t trial) override {
    Member& member = members_.at(trial);
    if (member.has_score) ranking_.Erase(member.score, trial);
    waiting_.erase({Step(trial), trial});
    member.has_score = false;
    member.saved_step = 0;
  }

  Task OnNext(bool may_start) override {
    may_start_ = may_start;
    if (may_start) return {.kind = Task::Kind::kStart};
    if (options_.synch) return NextOfRound();
    if (waiting_.empty()) return {.kind = Task::Kind::kWait};
    return Resume(waiting_.begin()->second);
  }

  // With synch all wait for the last one. Those that take over a state come first: the states are
  // those of this moment.
  Task NextOfRound() {
    while (!round_.empty() && HasEnded(round_.front())) round_.pop_front();
    if (round_.empty() && running() == 0) {
      const std::size_t part = QuantileSize();
      for (std::size_t rank = 0; rank < ranking_.size(); ++rank) {
        round_.push_back(ranking_.trial(rank));
        members_.at(ranking_.trial(rank)).exploits = rank < part;
      }
    }
    if (round_.empty()) return {.kind = Task::Kind::kWait};
    Task task = Resume(round_.front());
    round_.pop_front();
    return task;
  }

  Task Resume(std::int64_t trial) {
    Task task{.kind = Task::Kind::kResume, .trial = trial};
    Member& member = members_.at(trial);
    Draws draws(seed_, static_cast<std::uint64_t>(trial), member.changes + 1);
    const auto source = member.exploits ? PickSource(trial, draws) : std::nullopt;
    Json config;
    if (source)
      config = mutations_.Explore(members_.at(*source).config, *source, draws);  // It may throw.
    waiting_.erase({Step(trial), trial});
    if (std::exchange(member.exploits, false)) ++member.changes;
    if (!source) return task;
    const Member& parent = members_.at(*source);
    task.config = config.dump();
    task.source = *source;
    task.source_step = parent.saved_step;
    task.policy = Json{std::to_string(trial), std::to_string(*source), Step(trial),
                       parent.saved_step,     parent.config,           config}
                      .dump();
    member.config = std::move(config);
    member.last_perturbation = parent.saved_step;
    member.saved_step = 0;  // it has gone away from that state
    SetStep(trial, parent.saved_step);
    return task;
  }

  std::optional<std::int64_t> PickSource(std::int64_t trial, Draws& draws) const {
    const std::size_t part = QuantileSize();
    const std::size_t first = ranking_.size() - part;
    const auto fits = [&](std::int64_t candidate) {
      return candidate != trial && members_.at(candidate).saved_step > 0;
    };
    // Nearly all of them fit: a few draws spare the way through a large population.
    for (int attempt = 0; part > 0 && attempt < 32; ++attempt) {
      const std::int64_t candidate = ranking_.trial(first + draws.Index(part));
      if (fits(candidate)) return candidate;
    }
    std::vector<std::int64_t> sources;
    for (std::size_t rank = first; rank < ranking_.size(); ++rank)
      if (fits(ranking_.trial(rank))) sources.push_back(ranking_.trial(rank));
    if (sources.empty()) return std::nullopt;
    return sources[draws.Index(sources.size())];
  }

  void Save(Json& state) const override {
    state["may_start"] = may_start_;
    state["waiting"] = waiting_;
    state["round"] = round_;
    state["members"] = Json::array();
    for (const auto& [trial, member] : members_)
      state["members"].push_back({{"trial", trial},
                                  {"config", member.config},
                                  {"last_perturbation", member.last_perturbation},
                                  {"changes", member.changes},
                                  {"saved_step", member.saved_step},
                                  {"score", ToJson(member.score)},
                                  {"has_score", member.has_score},
                                  {"exploits", member.exploits}});
  }

  void Load(const Json& state) override {
    state.at("may_start").get_to(may_start_);
    state.at("waiting").get_to(waiting_);
    state.at("round").get_to(round_);
    members_.clear();
    ranking_ = {};
    for (const auto& saved : state.at("members")) {
      const auto trial = saved.at("trial").get<std::int64_t>();
      Member& member = members_[trial];
      member.config = saved.at("config");
      saved.at("last_perturbation").get_to(member.last_perturbation);
      saved.at("changes").get_to(member.changes);
      saved.at("saved_step").get_to(member.saved_step);
      member.score = ToDouble(saved.at("score"));
      saved.at("has_score").get_to(member.has_score);
      saved.at("exploits").get_to(member.exploits);
      if (member.has_score) ranking_.Insert(member.score, trial);
    }
  }

  PbtOptions options_;
  Mutations mutations_;
  std::uint64_t seed_;
  std::map<std::int64_t, Member> members_;
  Ranking ranking_;                                          // the live ones that have a score
  std::set<std::pair<std::int64_t, std::int64_t>> waiting_;  // step, trial
  std::deque<std::int64_t> round_;                           // of synch: who goes on next
  bool may_start_ = true;  // whether it was so when a worker last asked
};

MadeScheduler Make(Parameters& parameters, const SchedulerOptions& options, bool bounds) {
  const char* mutations_name = bounds ? "hyperparam_bounds" : "hyperparam_mutations";
  const PbtOptions pbt{.interval = parameters.Int("perturbation_interval", 60, 1),
                       .burn_in = parameters.Int("burn_in_period", 0, 0),
                       .quantile = parameters.Number("quantile_fraction", 0.25, 0, 0.5),
                       .synch = parameters.Bool("synch", false)};
  const double resample = parameters.Number("resample_probability", 0.25, 0, 1);
  Json given = parameters.Any(mutations_name);
  if (given.is_object() && bounds) {
    for (auto& [key, range] : given.items()) {
      if (!range.is_array() || range.size() != 2)
        parameters.Refuse(mutations_name, "an object of keys and [lower, upper]");
      range = Json{{"lower", range[0]}, {"upper", range[1]}};
    }
  }
  if (given.empty() && !options.explore)
    parameters.Refuse(mutations_name, "an object of keys and the values they may take");
  auto made = std::make_unique<Pbt>(pbt, Mutations(given, resample, options), options);
  if (options.epochs > 0 && pbt.interval >= options.epochs)
    made->AddNote(
        fmt::format("{} with perturbation_interval {} (epochs) changes no trial of {} "
                    "epochs; give a smaller perturbation_interval",
                    parameters.scheduler(), pbt.interval, options.epochs));
  return made;
}

}  // namespace

std::map<std::string, std::string> PolicyFiles(const std::vector<std::string>& policies) {
  const auto name = [](const Json& tag) {
    return fmt::format("pbt_policy_{:0>5}.txt", tag.get<std::string>());
  };
  std::map<std::string, std::string> files;
  for (const std::string& policy : policies) {
    const Json line = Json::parse(policy);
    std::string descent = files.contains(name(line[1])) ? files[name(line[1])] : "";
    files[name(line[0])] = descent + policy + "\n";
    files["pbt_global.txt"] += policy + "\n";
  }
  return files;
}

MadeScheduler MakePbt(Parameters& parameters, const SchedulerOptions& options) {
  return Make(parameters, options, false);
}

MadeScheduler MakePb2(Parameters& parameters, const SchedulerOptions& options) {
  auto made = Make(parameters, options, true);
  made->AddNote("scheduler pb2 runs as pbt: it draws new values, not from a model of them");
  return made;
}

}  // namespace orca::tune
