// TPE against Optuna's own numbers, and what its proposals depend on.
#include "tune/tpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "orca/tune/space.h"
#include "tune/philox.h"

namespace orca::tune {
namespace {

using ::testing::DoubleNear;

Parameter FromGolden(const std::string& name, const nlohmann::json& law) {
  const std::string kind = law[0];
  const double low = law[1];
  const double high = law[2];
  const double step = law[3];
  if (kind == "choice") return Choice(name, static_cast<std::int64_t>(high));
  if (kind == "float") return step > 0 ? QUniform(name, low, high, step) : Uniform(name, low, high);
  if (kind == "logfloat") return LogUniform(name, low, high);
  // Optuna's upper end is included.
  Parameter parameter =
      kind == "int"
          ? Integer(name, static_cast<std::int64_t>(low), static_cast<std::int64_t>(high) + 1)
          : LogInteger(name, static_cast<std::int64_t>(low), static_cast<std::int64_t>(high) + 1);
  parameter.step = step;
  return parameter;
}

TEST(TpeTest, RatiosAreOptunas) {
  std::ifstream file(ORCA_TEST_GOLDEN "/tpe/optuna-5.json");
  for (const nlohmann::json& golden : nlohmann::json::parse(file)) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    std::vector<Parameter> parameters;
    for (const nlohmann::json& law : golden["space"]) {
      parameters.push_back(FromGolden("p" + std::to_string(parameters.size()), law));
    }
    TpeSampler sampler(Space(parameters), {});
    std::int64_t number = 0;
    for (const nlohmann::json& trial : golden["trials"]) {
      Observation told = {.number = number++, .point = trial[0].get<Point>()};
      sampler.Tell(told);
      if (trial[1] == "RUNNING") continue;
      told.state = trial[1] == "PRUNED" ? TrialState::kPruned : TrialState::kFinished;
      told.loss = trial[2];
      told.step = trial[3];
      sampler.Tell(told);
    }
    const auto points = golden["points"].get<std::vector<Point>>();
    const std::vector<double> ratios = sampler.LogRatios(points);
    ASSERT_EQ(ratios.size(), golden["ratios"].size());
    for (std::size_t i = 0; i < ratios.size(); ++i) {
      EXPECT_THAT(ratios[i], DoubleNear(golden["ratios"][i].get<double>(), 1e-9)) << i;
    }
  }
}

Space Mixed() {
  return Space({Uniform("u", -2, 3), LogUniform("l", 1e-3, 10), Integer("i", 0, 9), Choice("c", 3),
                Normal("n", 0, 1), QNormal("qn", 0, 3, 0.5), When(Uniform("in c", 0, 1), "c", 1),
                When(QLogInteger("qi", 4, 64, 4), "c", 1),
                When(QLogUniform("ql", 1, 5, 1), "c", 2)});
}

double Loss(const Point& point) {
  return point[0] * point[0] + std::abs(std::log(point[1])) + (point[3] == 1 ? point[6] : 1) +
         point[4] * point[4];
}

// Runs so many trials, one after the other; every seventh fails.
std::vector<Point> RunTrials(Sampler& sampler, int trials,
                             const std::function<double(const Point&)>& loss) {
  std::vector<Point> points;
  for (int number = 0; number < trials; ++number) {
    points.push_back(sampler.Ask(number));
    Observation told = {.number = number, .point = points.back()};
    sampler.Tell(told);
    told.state = number % 7 == 3 ? TrialState::kFailed : TrialState::kFinished;
    told.loss = loss(told.point);
    sampler.Tell(told);
  }
  return points;
}

std::vector<double> Flat(const std::vector<Point>& points) {
  std::vector<double> all;
  for (const Point& point : points) all.insert(all.end(), point.begin(), point.end());
  std::replace_if(
      all.begin(), all.end(), [](double x) { return std::isnan(x); }, 1e9);
  return all;
}

TEST(TpeTest, ProposesPointsOfTheSpaceAndTheSameForTheSameSeed) {
  for (const bool multivariate : {true, false}) {
    const Space space = Mixed();
    TpeSampler first(space, {.seed = 5, .multivariate = multivariate});
    TpeSampler second(space, {.seed = 5, .multivariate = multivariate});
    TpeSampler other(space, {.seed = 6, .multivariate = multivariate});
    const std::vector<Point> points = RunTrials(first, 120, Loss);
    for (const Point& point : points) space.Check(point);
    EXPECT_EQ(Flat(points), Flat(RunTrials(second, 120, Loss)));
    EXPECT_NE(Flat(points), Flat(RunTrials(other, 120, Loss)));
  }
}

TEST(TpeTest, TheOrderInWhichTrialsEndDoesNotMatter) {
  const Space space = Mixed();
  std::vector<Observation> trials;
  for (int i = 0; i < 60; ++i) {
    trials.push_back({.number = i, .point = space.Draw(3, i)});
    trials.back().loss = std::floor(Loss(trials.back().point));  // With ties.
  }
  const auto ask = [&](bool backwards) {
    TpeSampler sampler(space, {.seed = 1});
    for (const Observation& trial : trials) sampler.Tell(trial);
    std::vector<Observation> ended(trials.begin(), trials.begin() + 55);
    if (backwards) std::reverse(ended.begin(), ended.end());
    for (Observation& trial : ended) {
      trial.state = TrialState::kFinished;
      sampler.Tell(trial);
    }
    return Flat({sampler.Ask(60), sampler.Ask(61)});
  };
  EXPECT_EQ(ask(false), ask(true));
}

// The model is kept from ask to ask; that must not be seen.
TEST(TpeTest, AModelThatGrewIsTheOneThatIsMadeAtOnce) {
  const Space space = Mixed();
  for (const bool multivariate : {true, false}) {
    const TpeOptions options = {.seed = 4, .multivariate = multivariate};
    TpeSampler grown(space, options);
    std::vector<Observation> trials;
    std::vector<Point> points;
    for (int i = 0; i < 300; ++i) {
      // Some of the earlier trials end late, so they come to the best, and others go from there.
      if (i % 10 == 0) {
        for (Observation& trial : trials) {
          if (trial.number % 10 == 9) trial.state = TrialState::kFinished;
          if (trial.number % 10 == 9) grown.Tell(trial);
        }
      }
      trials.push_back({.number = i, .point = grown.Ask(i)});
      points.push_back(trials.back().point);
      grown.Tell(trials.back());
      trials.back().loss = std::floor(8 * Loss(trials.back().point));  // With ties.
      if (i % 10 == 9) continue;
      trials.back().state = i % 7 == 3 ? TrialState::kPruned : TrialState::kFinished;
      trials.back().step = i % 3;
      grown.Tell(trials.back());
      if (i % 29 != 28) continue;
      TpeSampler made(space, options);
      for (const Observation& trial : trials) made.Tell(trial);
      EXPECT_EQ(grown.LogRatios(points), made.LogRatios(points)) << i;
      EXPECT_EQ(Flat({grown.Ask(1000)}), Flat({made.Ask(1000)})) << i;
    }
  }
}

TEST(TpeTest, ATrialThatWentOnCountsAsItEnded) {
  const Space space = Mixed();
  const auto ask = [&](bool pauses) {
    TpeSampler sampler(space, {.seed = 1});
    for (int i = 0; i < 40; ++i) {
      Observation trial = {.number = i, .point = space.Draw(3, i)};
      sampler.Tell(trial);
      trial.state = TrialState::kPruned;
      for (int step = 1; pauses && step <= i % 4; ++step) {
        trial.loss = 10 * Loss(trial.point) - step;
        trial.step = step;
        sampler.Tell(trial);
      }
      trial.state = i % 5 == 4 ? TrialState::kFailed : TrialState::kFinished;
      trial.loss = Loss(trial.point);
      sampler.Tell(trial);
    }
    return Flat({sampler.Ask(40), sampler.Ask(41)});
  };
  EXPECT_EQ(ask(true), ask(false));
}

TEST(TpeTest, FindsTheMinimumOfASphereFarBetterThanChance) {
  std::vector<Parameter> parameters;
  for (int d = 0; d < 5; ++d) parameters.push_back(Uniform("x" + std::to_string(d), -5, 5));
  const Space space(parameters);
  const auto sphere = [](const Point& point) {
    double sum = 0;
    for (const double x : point) sum += x * x;
    return sum;
  };
  std::vector<double> bests;
  for (std::uint64_t seed = 0; seed < 9; ++seed) {
    TpeSampler sampler(space, {.seed = seed});
    double best = 1e9;
    for (const Point& point : RunTrials(sampler, 300, sphere)) best = std::min(best, sphere(point));
    bests.push_back(best);
  }
  std::sort(bests.begin(), bests.end());
  EXPECT_LT(bests[4], 0.5);  // 300 random points: about 5.
}

}  // namespace
}  // namespace orca::tune
