#include "orca/tune/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "orca/core/error.h"
#include "tune/simulator.h"

namespace orca::tune {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string ErrorOf(const std::string& name, const std::string& parameters,
                    const SchedulerOptions& options = {}) {
  try {
    MakeScheduler(name, parameters, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

/// Accuracies of 81 epochs for every trial: fast and slow learners, good and bad, with noise.
class Curves {
 public:
  Curves(std::uint64_t seed, int trials) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> uniform(0, 1);
    std::normal_distribution<double> normal(0, 1);
    for (int trial = 0; trial < trials; ++trial) {
      const double top = 0.5 + 0.45 * std::pow(uniform(random), 2);
      const double speed = 0.5 + 0.7 * uniform(random);
      std::vector<double> curve;
      for (int epoch = 1; epoch <= 81; ++epoch)
        curve.push_back(top - (top - 0.1) * std::pow(1 + epoch, -speed) + 0.003 * normal(random));
      curves_.push_back(curve);
    }
  }
  double At(std::int64_t trial, std::int64_t epoch) const {
    return curves_[static_cast<std::size_t>(trial)][static_cast<std::size_t>(epoch - 1)];
  }

 private:
  std::vector<std::vector<double>> curves_;
};

Simulation Over(const Curves& curves, std::int64_t trials, int workers) {
  Simulation simulation;
  simulation.trials = trials;
  simulation.workers = workers;
  simulation.train = [&curves](std::int64_t trial, const std::string&, SimulatedState& state) {
    return curves.At(trial, state.epoch);
  };
  // Some trials are slower than others.
  simulation.seconds = [](std::int64_t trial) { return 1 + 0.13 * static_cast<double>(trial % 7); };
  return simulation;
}

const SchedulerOptions kMax{.maximize = true};

TEST(SchedulerTest, EveryNameMakesASchedulerWithItsDefaults) {
  EXPECT_THAT(SchedulerNames(), SizeIs(11));
  for (const auto& name : SchedulerNames()) {
    auto parameters = nlohmann::json::parse(name.defaults);
    if (name.name == "pbt_replay") continue;  // reads a file
    if (name.name == "pbt") parameters["hyperparam_mutations"] = {{"lr", {0.1, 0.2}}};
    if (name.name == "pb2") parameters["hyperparam_bounds"] = {{"lr", {0.1, 0.2}}};
    const auto scheduler = MakeScheduler(name.name, parameters.dump());
    EXPECT_EQ(scheduler->Next(true).kind, Task::Kind::kStart) << name.name;
    scheduler->Start(0, R"({"lr": 0.1})");
    EXPECT_EQ(scheduler->Report(0, 1, 0.5),
              name.name == "hb_bohb" ? Decision::kPause : Decision::kContinue);
  }
  EXPECT_EQ(MakeScheduler("")->Next(false).kind, Task::Kind::kWait);
  EXPECT_NE(MakeScheduler("None"), nullptr);
}

TEST(SchedulerTest, BadNamesAndParametersAreRefusedWithWhatIsKnown) {
  EXPECT_THAT(ErrorOf("asha2", "{}"), HasSubstr("no scheduler \"asha2\"; known are fifo, async_"));
  EXPECT_THAT(ErrorOf("hyperband", R"({"maxt": 3})"), HasSubstr("no parameter maxt; it has max_t"));
  EXPECT_THAT(ErrorOf("hyperband", R"({"max_t": 0})"), HasSubstr("a whole number from 1 on"));
  EXPECT_THAT(ErrorOf("hyperband", R"({"max_t": 2.5})"), HasSubstr("a whole number from 1 on"));
  EXPECT_THAT(ErrorOf("asynchyperband", R"({"max_t": 2, "grace_period": 3})"),
              HasSubstr("at least grace_period"));
  EXPECT_THAT(ErrorOf("asynchyperband", R"({"reduction_factor": 1})"), HasSubstr("a number from"));
  EXPECT_THAT(ErrorOf("asynchyperband", R"({"form": "x"})"), HasSubstr("promotion"));
  EXPECT_THAT(ErrorOf("asynchyperband", R"({"brackets": 9})"), HasSubstr("no rung"));
  EXPECT_THAT(ErrorOf("fifo", "[1]"), HasSubstr("give a JSON object"));
  EXPECT_THAT(ErrorOf("pbt", "{}"), HasSubstr("hyperparam_mutations"));
  EXPECT_THAT(ErrorOf("pbt", R"({"hyperparam_mutations": {"a": 3}})"), HasSubstr("is 3"));
  EXPECT_THAT(ErrorOf("pbt", R"({"hyperparam_mutations": {"a": []}})"), HasSubstr("empty list"));
  EXPECT_THAT(ErrorOf("pbt", R"({"hyperparam_mutations": {"a": {"lower": 2, "upper": 1}}})"),
              HasSubstr("lower 2 and upper 1"));
  EXPECT_THAT(ErrorOf("pb2", R"({"hyperparam_bounds": {"a": 1}})"), HasSubstr("[lower, upper]"));
  EXPECT_THAT(ErrorOf("pbt_replay", "{}"), HasSubstr("policy_file"));
  EXPECT_THAT(ErrorOf("pbt_replay", R"({"policy_file": "/no/such"})"), HasSubstr("cannot be read"));
  EXPECT_THAT(ErrorOf("resource_changing", R"({"base_scheduler": 3})"), HasSubstr("a name"));
  EXPECT_THAT(ErrorOf("resource_changing", R"({"base_scheduler": "x"})"), HasSubstr("known are"));
  const auto lenient = MakeScheduler("fifo", R"({"max_t": 3})", {.ignore_unknown = true});
  EXPECT_THAT(lenient->notes(), ElementsAre(HasSubstr("has no parameter max_t; it has none")));
}

TEST(SchedulerTest, WhatNeverActsOrRunsAsAnotherIsSaid) {
  const auto notes = [](const std::string& name, const std::string& parameters) {
    return MakeScheduler(name, parameters, {.epochs = 10})->notes();
  };
  EXPECT_THAT(notes("medianstopping", "{}"), ElementsAre(HasSubstr("stops no trial of 10 epochs")));
  EXPECT_THAT(notes("pbt", R"({"hyperparam_mutations": {"a": [1, 2]}})"),
              ElementsAre(HasSubstr("perturbation_interval 60 (epochs) changes no trial")));
  EXPECT_THAT(notes("hyperband", "{}"), ElementsAre(HasSubstr("give max_t=10")));
  EXPECT_THAT(notes("async_hyperband", R"({"grace_period": 10})"),
              ElementsAre(HasSubstr("stops no trial")));
  EXPECT_THAT(notes("async_hyperband", "{}"), ElementsAre());
  EXPECT_THAT(notes("pb2", R"({"hyperparam_bounds": {"a": [1, 2]}, "perturbation_interval": 2})"),
              ElementsAre(HasSubstr("pb2 runs as pbt")));
  EXPECT_THAT(
      notes("resource_changing", R"({"base_scheduler": {"name": "hyperband", "max_t": 9}})"),
      ElementsAre(HasSubstr("runs as hyperband")));
}

TEST(SchedulerTest, ReportsThatComeAgainGetTheirDecisionAgain) {
  const auto scheduler = MakeScheduler("asynchyperband", "{}", kMax);
  for (std::int64_t trial = 0; trial < 5; ++trial) {
    scheduler->Start(trial, "{}");
    EXPECT_EQ(scheduler->Report(trial, 1, 5.0 + static_cast<double>(trial)), Decision::kContinue);
  }
  scheduler->Start(5, "{}");
  EXPECT_EQ(scheduler->Report(5, 1, 1), Decision::kStop);
  const std::string state = scheduler->State();
  EXPECT_EQ(scheduler->Report(5, 1, 100), Decision::kStop);
  EXPECT_EQ(scheduler->Report(4, 1, -100), Decision::kContinue);
  scheduler->Failed(5);
  EXPECT_EQ(scheduler->State(), state);
  EXPECT_THROW(scheduler->Report(9, 1, 1), Error);
  EXPECT_THROW(scheduler->Report(4, 0, 1), Error);
  EXPECT_THROW(scheduler->Start(4, "{}"), Error);
}

TEST(SchedulerTest, StatesOfOthersAndDamagedOnesAreRefused) {
  const auto scheduler = MakeScheduler("hyperband");
  const auto refused = [&](const std::string& state) {
    try {
      scheduler->Restore(state);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refused(MakeScheduler("fifo")->State()), HasSubstr("state of scheduler fifo"));
  EXPECT_THAT(refused("{"), HasSubstr("damaged"));
  EXPECT_THAT(refused(R"({"scheduler": "hyperband"})"), HasSubstr("damaged"));
  EXPECT_EQ(refused(scheduler->State()), "accepted");
}

// --- HyperBand

struct Rung {
  std::int64_t trials;
  std::int64_t epoch;
};

// The table of the paper (JMLR 18, 2018, table 1) for R = 81, eta = 3, with its rounding.
const std::vector<std::vector<Rung>> kPaper{{{5, 81}},
                                            {{8, 27}, {2, 81}},
                                            {{15, 9}, {5, 27}, {1, 81}},
                                            {{34, 3}, {11, 9}, {3, 27}, {1, 81}},
                                            {{81, 1}, {27, 3}, {9, 9}, {3, 27}, {1, 81}}};

std::map<std::int64_t, int> StepsOfRange(const SimulationResult& result, std::int64_t first,
                                         std::int64_t count) {
  std::map<std::int64_t, int> counts;
  for (std::int64_t trial = first; trial < first + count; ++trial) ++counts[result.steps.at(trial)];
  return counts;
}

void ExpectPaper(const std::string& name, std::vector<std::vector<Rung>> brackets) {
  const Curves curves(1, 143);
  const auto result = Simulate(MakeScheduler(name, "{}", kMax), Over(curves, 143, 5));
  std::int64_t first = 0;
  std::int64_t cost = 0;
  for (const auto& bracket : brackets) {
    std::map<std::int64_t, int> expected;
    for (std::size_t i = 0; i < bracket.size(); ++i) {
      const std::int64_t next = i + 1 < bracket.size() ? bracket[i + 1].trials : 0;
      if (bracket[i].trials > next)
        expected[bracket[i].epoch] = static_cast<int>(bracket[i].trials - next);
      cost += bracket[i].trials * (bracket[i].epoch - (i > 0 ? bracket[i - 1].epoch : 0));
    }
    EXPECT_EQ(StepsOfRange(result, first, bracket[0].trials), expected);
    first += bracket[0].trials;
  }
  // Nothing is trained twice: a trial that goes on costs what is added only.
  EXPECT_EQ(result.epochs, cost);
}

TEST(HyperBandTest, CostsWhatThePaperSays) { ExpectPaper("hyperband", kPaper); }

TEST(HyperBandTest, ForBohbTheBracketWithTheMostTrialsComesFirst) {
  ExpectPaper("hb_bohb", {kPaper.rbegin(), kPaper.rend()});
}

TEST(HyperBandTest, KeepsTheBestOfABracket) {
  const Curves curves(2, 143);
  const auto result = Simulate(MakeScheduler("hb_bohb", "{}", kMax), Over(curves, 81, 3));
  std::vector<std::int64_t> order(81);
  for (std::int64_t i = 0; i < 81; ++i) order[static_cast<std::size_t>(i)] = i;
  for (const auto& [keep, epoch] : {Rung{27, 1}, Rung{9, 3}, Rung{3, 9}, Rung{1, 27}}) {
    std::sort(order.begin(), order.end(), [&, at = epoch](std::int64_t a, std::int64_t b) {
      return curves.At(a, at) > curves.At(b, at);
    });
    order.resize(static_cast<std::size_t>(keep));
    for (const std::int64_t trial : order) EXPECT_GT(result.steps.at(trial), epoch);
  }
  EXPECT_EQ(result.steps.at(order[0]), 81);
}

TEST(HyperBandTest, RaysMilestonesEndAt54ByFlag) {
  const Curves curves(3, 143);
  const auto result = Simulate(MakeScheduler("hyperband", R"({"ray_milestones": true})", kMax),
                               Over(curves, 143, 5));
  EXPECT_EQ(StepsOfRange(result, 5, 8), (std::map<std::int64_t, int>{{27, 5}, {54, 3}}));
  EXPECT_EQ(StepsOfRange(result, 62, 81),
            (std::map<std::int64_t, int>{{1, 54}, {3, 18}, {9, 6}, {27, 2}, {54, 1}}));
}

TEST(HyperBandTest, TrialsThatFailAndStudiesThatEndEarlyHoldNothingUp) {
  // 8 trials in a bracket of 15: they are halved when no more can come.
  const Curves curves(4, 143);
  auto simulation = Over(curves, 5 + 8 + 8, 4);
  const auto result = Simulate(MakeScheduler("hyperband", "{}", kMax), simulation);
  EXPECT_EQ(StepsOfRange(result, 13, 8), (std::map<std::int64_t, int>{{9, 6}, {27, 1}, {81, 1}}));

  const auto scheduler = MakeScheduler("hb_bohb", R"({"max_t": 3})", kMax);
  for (std::int64_t trial = 0; trial < 3; ++trial) scheduler->Start(trial, "{}");
  EXPECT_EQ(scheduler->Report(0, 1, 0.1), Decision::kPause);
  EXPECT_EQ(scheduler->Report(1, 1, std::numeric_limits<double>::quiet_NaN()), Decision::kPause);
  EXPECT_EQ(scheduler->Next(false).kind, Task::Kind::kWait);
  scheduler->Failed(2);
  const Task stop = scheduler->Next(false);
  EXPECT_EQ(stop.kind, Task::Kind::kStop);
  EXPECT_EQ(stop.trial, 1);
  const Task resume = scheduler->Next(false);
  EXPECT_EQ(resume.kind, Task::Kind::kResume);
  EXPECT_EQ(resume.trial, 0);
  EXPECT_EQ(scheduler->Report(0, 2, 0.2), Decision::kContinue);
  EXPECT_EQ(scheduler->Report(0, 3, 0.3), Decision::kStop);
  EXPECT_EQ(scheduler->Next(false).kind, Task::Kind::kWait);
}

TEST(HyperBandTest, WithoutStopLastTrialsTheLastOneGoesOn) {
  const Curves curves(5, 9);
  auto simulation = Over(curves, 3, 3);
  simulation.epochs = 40;
  const auto result = Simulate(
      MakeScheduler("hb_bohb", R"({"max_t": 3, "stop_last_trials": false})", kMax), simulation);
  EXPECT_EQ(StepsOfRange(result, 0, 3), (std::map<std::int64_t, int>{{1, 2}, {40, 1}}));
}

// --- ASHA

/// Epochs until a report reaches `target`; all that random search had if none does.
std::int64_t EpochsTo(double target, const std::string& parameters, const Curves& curves,
                      std::int64_t trials) {
  auto simulation = Over(curves, trials, 4);
  bool reached = false;
  simulation.watch = [&](std::int64_t, std::int64_t, double value) {
    reached = reached || value >= target;
    return !reached;
  };
  const auto result = Simulate(MakeScheduler("asynchyperband", parameters, kMax), simulation);
  return reached ? result.epochs : 60 * 81;
}

TEST(AshaTest, ReachesRandomSearchsFinalValueWithAThirdOfTheEpochs) {
  for (const char* form : {"stopping", "promotion"}) {
    double share = 0;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Curves curves(100 + seed, 300);
      double best = 0;
      auto simulation = Over(curves, 60, 4);
      simulation.watch = [&](std::int64_t, std::int64_t, double value) {
        best = std::max(best, value);
        return true;
      };
      const auto random = Simulate(MakeScheduler("fifo", "{}", kMax), simulation);
      EXPECT_EQ(random.epochs, 60 * 81);
      const std::string parameters = std::string(R"({"max_t": 81, "form": ")") + form + "\"}";
      const std::int64_t epochs = EpochsTo(best, parameters, curves, 300);
      share += static_cast<double>(epochs) / static_cast<double>(random.epochs) / 20;
    }
    std::printf("ASHA, %s: %.3f of random search's epochs\n", form, share);
    EXPECT_LE(share, 1.0 / 3) << form;
  }
}

TEST(AshaTest, PromotesTheBestOfTheHighestRungThatHasOne) {
  const auto scheduler = MakeScheduler(
      "async_hyperband", R"({"form": "promotion", "reduction_factor": 2, "max_t": 8})", kMax);
  for (std::int64_t trial = 0; trial < 4; ++trial) {
    EXPECT_EQ(scheduler->Next(true).kind, Task::Kind::kStart);
    scheduler->Start(trial, "{}");
  }
  const double values[] = {0.1, 0.4, 0.3, 0.2};
  EXPECT_EQ(scheduler->Report(0, 1, values[0]), Decision::kPause);
  EXPECT_EQ(scheduler->Next(false).kind, Task::Kind::kWait);  // half of one is none
  EXPECT_EQ(scheduler->Report(1, 1, values[1]), Decision::kPause);
  Task task = scheduler->Next(true);
  EXPECT_EQ(task.kind, Task::Kind::kResume);
  EXPECT_EQ(task.trial, 1);
  EXPECT_EQ(scheduler->Report(2, 1, values[2]), Decision::kPause);
  EXPECT_EQ(scheduler->Report(3, 1, values[3]), Decision::kPause);
  EXPECT_EQ(scheduler->Report(1, 2, 0.5), Decision::kPause);
  task = scheduler->Next(true);
  EXPECT_EQ(task.trial, 2);
  EXPECT_EQ(scheduler->Next(true).kind, Task::Kind::kStart);  // 0 and 3 are the worse half
  EXPECT_EQ(scheduler->Report(2, 2, 0.45), Decision::kPause);
  task = scheduler->Next(false);
  EXPECT_EQ(task.trial, 1);
  EXPECT_EQ(scheduler->Report(1, 3, 0.5), Decision::kContinue);
  EXPECT_EQ(scheduler->Report(1, 4, 0.5), Decision::kPause);
  EXPECT_EQ(scheduler->Next(false).kind, Task::Kind::kWait);
}

TEST(AshaTest, ABracketIsAsLikelyAsEToItsRungs) {
  // Rungs at 1, 4, 16, 64 and at 4, 16, 64: at step 1 only the first bracket compares.
  const auto scheduler = MakeScheduler("asynchyperband", R"({"brackets": 2})", kMax);
  int stopped = 0;
  constexpr int kTrials = 20000;
  for (std::int64_t trial = 0; trial < kTrials; ++trial) {
    scheduler->Start(trial, "{}");
    stopped += scheduler->Report(trial, 1, static_cast<double>(-trial)) == Decision::kStop ? 1 : 0;
  }
  const double share = std::exp(4) / (std::exp(4) + std::exp(3));
  EXPECT_NEAR(static_cast<double>(stopped) / kTrials, share, 0.015);  // 4.8 sigma
}

// --- PBT

/// The toy of the PBT paper: 1.2 - theta0^2 - theta1^2 is wanted, 1.2 - h0 theta0^2 - h1 theta1^2
/// is what gradients see.
double Toy(const std::string& config, SimulatedState& state) {
  const auto h = nlohmann::json::parse(config);
  auto& theta = state.weights;
  theta[0] -= 0.02 * h["h0"].get<double>() * theta[0];
  theta[1] -= 0.02 * h["h1"].get<double>() * theta[1];
  return 1.2 - theta[0] * theta[0] - theta[1] * theta[1];
}

Simulation ToySimulation(int workers) {
  Simulation simulation;
  simulation.workers = workers;
  simulation.trials = 2;
  simulation.epochs = 500;
  simulation.first_weights = {0.9, 0.9};
  simulation.config = [](std::int64_t trial) {
    return trial == 0 ? R"({"h0": 1.0, "h1": 0.0})" : R"({"h0": 0.0, "h1": 1.0})";
  };
  simulation.train = [](std::int64_t, const std::string& config, SimulatedState& state) {
    return Toy(config, state);
  };
  return simulation;
}

constexpr const char* kToyPbt =
    R"({"perturbation_interval": 10, "hyperparam_mutations":
        {"h0": {"lower": 0, "upper": 1}, "h1": {"lower": 0, "upper": 1}}})";

double BestOf(const SimulationResult& result) {
  double best = -10;
  for (const auto& [trial, state] : result.states)
    best = std::max(
        best, 1.2 - state.weights[0] * state.weights[0] - state.weights[1] * state.weights[1]);
  return best;
}

TEST(PbtTest, SolvesThePapersToyFromBothCorners) {
  // Alone each of the two improves one weight only.
  const auto alone = Simulate(MakeScheduler("fifo", "{}", kMax), ToySimulation(2));
  EXPECT_LT(BestOf(alone), 0.4);
  for (const bool synch : {false, true}) {
    for (const int workers : {1, 2}) {
      int solved = 0;
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        auto parameters = nlohmann::json::parse(kToyPbt);
        parameters["synch"] = synch;
        const auto result =
            Simulate(MakeScheduler("pbt", parameters.dump(), {.maximize = true, .seed = seed}),
                     ToySimulation(workers));
        EXPECT_THAT(result.policies, ::testing::Not(::testing::IsEmpty()));
        EXPECT_EQ(result.steps, (std::map<std::int64_t, std::int64_t>{{0, 500}, {1, 500}}));
        solved += BestOf(result) > 1.15 ? 1 : 0;
      }
      EXPECT_GE(solved, 19) << "synch " << synch << ", workers " << workers;
    }
  }
}

TEST(PbtTest, ChangesAListByOnePlaceAndARangeByAFifth) {
  const auto scheduler = MakeScheduler(
      "pbt",
      R"({"perturbation_interval": 1, "resample_probability": 0, "hyperparam_mutations":
          {"list": [1, 2, 4, 8], "net": {"width": {"lower": 1, "upper": 100}},
           "rate": {"lower": 0.5, "upper": 1.1}}})",
      kMax);
  std::map<int, int> lists;
  std::map<int, int> widths;
  std::map<double, int> rates;
  constexpr int kPairs = 400;
  for (std::int64_t pair = 0; pair < kPairs; ++pair) {
    const auto restarted = MakeScheduler(
        "pbt",
        R"({"perturbation_interval": 1, "resample_probability": 0, "hyperparam_mutations":
          {"list": [1, 2, 4, 8], "net": {"width": {"lower": 1, "upper": 100}},
           "rate": {"lower": 0.5, "upper": 1.1}}})",
        {.maximize = true, .seed = static_cast<std::uint64_t>(pair)});
    const char* config = R"({"list": 2, "net": {"width": 9}, "rate": 1.0, "other": "x"})";
    restarted->Start(0, config);
    restarted->Start(1, R"({"list": 8, "net": {"width": 50}, "rate": 0.7, "other": "y"})");
    restarted->Next(false);
    restarted->Report(0, 1, 2.0);
    EXPECT_EQ(restarted->Report(0, 2, 2.0), Decision::kContinue);  // it has no rival yet
    restarted->Report(1, 1, 1.0);
    EXPECT_EQ(restarted->Next(false).source, -1);  // trial 0 has no stored state
    EXPECT_EQ(restarted->Report(0, 3, 2.0), Decision::kSave);
    EXPECT_EQ(restarted->Report(1, 2, 1.0), Decision::kPause);
    const Task task = restarted->Next(false);
    EXPECT_EQ(task.kind, Task::Kind::kResume);
    EXPECT_EQ(task.trial, 1);
    EXPECT_EQ(task.source, 0);
    EXPECT_EQ(task.source_step, 3);
    const auto changed = nlohmann::json::parse(task.config);
    EXPECT_EQ(changed["other"], "x");
    EXPECT_TRUE(changed["net"]["width"].is_number_integer());
    ++lists[changed["list"].get<int>()];
    ++widths[changed["net"]["width"].get<int>()];
    ++rates[changed["rate"].get<double>()];
    EXPECT_EQ(task.policy,
              (nlohmann::json{"1", "0", 2, 3, nlohmann::json::parse(config), changed}).dump());
    // It goes on from the other's epoch.
    EXPECT_EQ(restarted->Report(1, 4, 5.0), Decision::kSave);
  }
  // Half up, half down: 5 sigma.
  EXPECT_EQ(lists.size(), 2U);
  EXPECT_NEAR(lists[1], kPairs / 2, 50);
  EXPECT_EQ(lists[1] + lists[4], kPairs);
  EXPECT_EQ(widths[10] + widths[7], kPairs);  // 10.8 and 7.2, truncated
  EXPECT_EQ(rates[1.1] + rates[0.8], kPairs);
}

TEST(PbtTest, DrawsFromFunctionsAndAsksTheUsersExplorer) {
  SchedulerOptions options{.maximize = true};
  options.draws["rate"] = [](std::uint64_t) { return "0.125"; };
  options.explore = [](const std::string& config, std::int64_t source) {
    auto changed = nlohmann::json::parse(config);
    EXPECT_EQ(source, 1);
    changed["explored"] = true;
    return changed.dump();
  };
  const auto scheduler = MakeScheduler("pbt",
                                       R"({"perturbation_interval": 1, "resample_probability": 1,
                                           "hyperparam_mutations": {"rate": null}})",
                                       options);
  scheduler->Next(false);
  for (std::int64_t trial = 0; trial < 2; ++trial) scheduler->Start(trial, R"({"rate": 1.0})");
  scheduler->Report(0, 1, 1.0);
  scheduler->Report(1, 1, 2.0);
  scheduler->Report(0, 2, 1.0);
  const Task task = scheduler->Next(false);
  EXPECT_EQ(nlohmann::json::parse(task.config),
            nlohmann::json::parse(R"({"explored": true, "rate": 0.125})"));
}

TEST(PbtTest, WholeNumbersStayWholeWhateverTheyWere) {
  const auto scheduler =
      MakeScheduler("pbt", R"({"perturbation_interval": 1, "resample_probability": 1,
                 "hyperparam_mutations": {"n": {"lower": 1, "upper": 9, "whole": true}}})");
  scheduler->Next(false);
  for (std::int64_t trial = 0; trial < 2; ++trial) scheduler->Start(trial, "{}");
  scheduler->Report(0, 1, 1.0);
  scheduler->Report(1, 1, 2.0);
  scheduler->Report(0, 2, 1.0);
  scheduler->Report(1, 2, 2.0);
  const Task task = scheduler->Next(false);
  EXPECT_TRUE(nlohmann::json::parse(task.config)["n"].is_number_integer()) << task.config;
}

TEST(PbtTest, ReplayTakesTheConfigurationsOfTheLineOfDescent) {
  const std::string path = ::testing::TempDir() + "orca_policy.txt";
  // The first line was overwritten: the source of the third is trial 2, not the second line's.
  std::ofstream(path) << R"(["2", "5", 3, 3, {"x": 7}, {"x": 8}])"
                      << "\n"
                      << R"(["2", "1", 4, 4, {"x": 1}, {"x": 2}])"
                      << "\n"
                      << R"(["0", "2", 8, 9, {"x": 2}, {"x": 3}])"
                      << "\n";
  const auto scheduler = MakeScheduler("pbt_replay", nlohmann::json{{"policy_file", path}}.dump());
  const Task start = scheduler->Next(true);
  EXPECT_EQ(start.config, R"({"x":1})");
  scheduler->Start(0, start.config);
  EXPECT_THROW(scheduler->Start(1, "{}"), Error);
  std::vector<std::pair<std::int64_t, std::string>> changes;
  for (std::int64_t step = 1; step <= 12; ++step) {
    if (scheduler->Report(0, step, 1) != Decision::kPause) continue;
    const Task task = scheduler->Next(false);
    EXPECT_EQ(task.kind, Task::Kind::kResume);
    EXPECT_EQ(task.source, -1);
    changes.emplace_back(step, task.config);
  }
  EXPECT_THAT(changes, ElementsAre(std::pair<std::int64_t, std::string>(4, R"({"x":2})"),
                                   std::pair<std::int64_t, std::string>(9, R"({"x":3})")));
}

// --- all of them

const std::vector<std::pair<std::string, std::string>> kAll{
    {"fifo", "{}"},
    {"asynchyperband", R"({"brackets": 2})"},
    {"asynchyperband", R"({"form": "promotion"})"},
    {"hyperband", R"({"max_t": 27})"},
    {"hb_bohb", R"({"max_t": 27})"},
    {"medianstopping", R"({"grace_period": 3})"},
    {"medianstopping", R"({"grace_period": 3, "hard_stop": false})"},
    {"pbt", R"({"perturbation_interval": 5, "hyperparam_mutations": {"x": [1, 2]}})"},
    {"pbt",
     R"({"perturbation_interval": 5, "synch": true, "hyperparam_mutations": {"x": [1, 2]}})"}};

TEST(SchedulerTest, AStateRestoredBeforeEveryCallChangesNothing) {
  const Curves curves(9, 143);
  for (const auto& [name, parameters] : kAll) {
    const auto make = [&, &name = name, &parameters = parameters] {
      return MakeScheduler(name, parameters, {.maximize = true, .seed = 3});
    };
    auto simulation = Over(curves, 20, 3);
    simulation.epochs = 30;
    const auto plain = Simulate(make(), simulation);
    simulation.renew = make;
    const auto renewed = Simulate(make(), simulation);
    EXPECT_EQ(renewed.log, plain.log) << name << parameters;
    EXPECT_EQ(plain.steps.size(), 20U);
  }
}

TEST(SchedulerTest, OnlyThosePauseThatSayTheyMay) {
  const Curves curves(9, 143);
  for (const auto& [name, parameters] : kAll) {
    auto scheduler = MakeScheduler(name, parameters, {.maximize = true, .seed = 3});
    const bool may_pause = scheduler->may_pause();
    auto simulation = Over(curves, 20, 3);
    simulation.epochs = 30;
    const std::string log = Simulate(std::move(scheduler), simulation).log;
    const bool pauses =
        log.find("pause ") != std::string::npos || log.find("save ") != std::string::npos;
    EXPECT_EQ(pauses, may_pause) << name << parameters;
  }
}

}  // namespace
}  // namespace orca::tune
