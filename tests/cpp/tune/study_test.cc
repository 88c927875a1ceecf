// Studies: order, batches, points to evaluate, duplicates, and bad calls.
#include "orca/tune/study.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "net/expect_error.h"
#include "orca/core/error.h"

namespace orca::tune {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Space Floats() { return Space({Uniform("x", -5, 5), LogUniform("y", 1e-3, 1e3)}); }

double Loss(const Point& point) { return point[0] * point[0] + std::abs(std::log(point[1])); }

// Runs a study with `parallel` trials under way, of which the `pick`-th ends next.
std::vector<Point> RunStudy(Study& study, std::int64_t trials, std::size_t parallel,
                            std::size_t pick) {
  std::deque<Trial> running;
  std::int64_t ended = study.size();
  while (ended < trials) {
    while (running.size() < parallel && study.size() < trials && study.CanAsk()) {
      running.push_back(study.Ask().value());
    }
    const auto next = running.begin() + static_cast<std::ptrdiff_t>(pick % running.size());
    if (next->number % 11 == 5) {
      study.Fail(next->number, "for the test");
    } else {
      study.Tell(next->number, Loss(next->point));
    }
    running.erase(next);
    ++ended;
  }
  std::vector<Point> points;
  for (const Trial& trial : study.Trials()) points.push_back(trial.point);
  return points;
}

class EverySearchTest : public ::testing::TestWithParam<std::string> {
 protected:
  StudyOptions Options(std::int64_t batch = 0) const {
    return {.search_alg = GetParam(), .search = {.seed = 3}, .batch = batch};
  }
};

TEST_P(EverySearchTest, TheSameSeedGivesTheSameTrials) {
  Study first(Floats(), Options());
  Study second(Floats(), Options());
  EXPECT_EQ(RunStudy(first, 40, 1, 0), RunStudy(second, 40, 1, 0));
}

TEST_P(EverySearchTest, ABatchedStudyDoesNotDependOnParallelism) {
  Study alone(Floats(), Options(4));
  const std::vector<Point> expected = RunStudy(alone, 24, 1, 0);
  for (const std::size_t parallel : {2, 4, 7}) {
    for (const std::size_t pick : {0, 1, 2}) {
      Study study(Floats(), Options(4));
      EXPECT_EQ(RunStudy(study, 24, parallel, pick), expected) << parallel << " " << pick;
    }
  }
}

TEST_P(EverySearchTest, ARestoredStudyGoesOnAsIfNothingHappened) {
  for (const std::int64_t batch : {0, 4}) {
    Study whole(Floats(), Options(batch));
    const std::vector<Point> expected = RunStudy(whole, 30, 1, 0);
    Study again(Floats(), Options(batch));
    for (const Trial& trial : whole.Trials()) {
      if (trial.number == 18) break;
      again.Restore(trial);
    }
    EXPECT_EQ(RunStudy(again, 30, 1, 0), expected);
  }
}

TEST_P(EverySearchTest, TakesEveryKindOfParameter) {
  const Space space({Uniform("a", 0, 1), QUniform("b", 0, 2, 0.5), LogUniform("c", 1e-4, 10),
                     QLogUniform("d", 1, 5, 1), Normal("e", 2, 0.5), QNormal("f", 0, 1, 0.25),
                     Integer("g", -1, 30), QInteger("h", 0, 8, 2), LogInteger("i", 1, 900),
                     QLogInteger("j", 3, 12, 3), Choice("k", 3), When(Uniform("l", 0, 1), "k", 2)});
  Study study(space, Options());
  for (int i = 0; i < 30; ++i) {
    const Trial trial = study.Ask().value();
    space.Check(trial.point);
    if (i % 9 == 4) {
      study.AddReport(trial.number, 1, 3);
      study.Prune(trial.number);
    } else {
      study.Tell(trial.number, i % 10 == 7 ? NAN : trial.point[0] + trial.point[10]);
    }
  }
}

// Every algorithm; other names are the same ones.
INSTANTIATE_TEST_SUITE_P(Names, EverySearchTest,
                         ::testing::Values("random", "sobol", "tpe", "hyperopt", "gp", "bayesopt",
                                           "cmaes", "auto"),
                         [](const auto& tested) { return tested.param; });

TEST(StudyTest, BestIsTheSmallestOrTheLargest) {
  for (const Mode mode : {Mode::kMin, Mode::kMax}) {
    Study study(Floats(), {.mode = mode});
    EXPECT_FALSE(study.Best());
    for (const double value : {3.0, 1.0, 7.0, 1.0, 7.0, static_cast<double>(NAN),
                               -static_cast<double>(INFINITY), static_cast<double>(INFINITY)}) {
      study.Tell(study.Ask()->number, value);
    }
    study.Fail(study.Ask()->number, "broken");
    study.Prune(study.Ask()->number);
    EXPECT_EQ(study.Best()->number, mode == Mode::kMin ? 1 : 2);
    EXPECT_EQ(study.At(5).state, TrialState::kFailed);
    EXPECT_THAT(study.At(6).error, HasSubstr("-inf"));
    EXPECT_EQ(study.At(8).error, "broken");
  }
}

TEST(StudyTest, MaximisesAsItMinimises) {
  Study low(Floats(), {.mode = Mode::kMin, .search = {.seed = 1}});
  Study high(Floats(), {.mode = Mode::kMax, .search = {.seed = 1}});
  for (int i = 0; i < 40; ++i) {
    const Trial trial = low.Ask().value();
    EXPECT_EQ(high.Ask()->point, trial.point);
    low.Tell(i, Loss(trial.point));
    high.Tell(i, -Loss(trial.point));
  }
}

TEST(StudyTest, PointsToEvaluateComeFirstAndAreCompleted) {
  Study study(Floats(), {.points = {{1, 2}, {NAN, 3}}});
  EXPECT_THAT(study.Ask()->point, ElementsAre(1, 2));
  EXPECT_EQ(study.Ask()->point[1], 3);
  EXPECT_NE(study.Ask()->point[1], 3);

  Study warm(Floats(), {.points = {{1, 2}}});
  warm.Add({.point = {0.5, 0.5}, .state = TrialState::kFinished, .value = 2});
  EXPECT_THAT(warm.Ask()->point, ElementsAre(1, 2));
  EXPECT_EQ(warm.Best()->value, 2);
}

TEST(StudyTest, SamplersLearnFromTrialsThatArePaused) {
  // Nine of ten stay paused after their first step.
  const auto mean = [](const std::string& search_alg) {
    Study study(Floats(), {.search_alg = search_alg,
                           .scheduler = "async_hyperband",
                           .scheduler_parameters =
                               R"({"max_t": 100, "reduction_factor": 10, "form": "promotion"})",
                           .search = {.seed = 3}});
    double losses = 0;
    for (int trials = 0; trials < 60;) {
      const Trial trial = study.Ask().value();
      for (std::int64_t step = trial.resumed_step + 1; step <= 100; ++step) {
        const Decision decision = study.AddReport(trial.number, step, Loss(trial.point));
        if (decision == Decision::kPause || decision == Decision::kStop) break;
        if (step == 100) study.Tell(trial.number, Loss(trial.point));
      }
      if (trial.resumed_step > 0) continue;
      if (++trials > 30) losses += Loss(trial.point) / 30;
    }
    return losses;
  };
  EXPECT_LT(mean("tpe"), 0.5 * mean("random"));
}

TEST(StudyTest, AFiniteSpaceIsExhaustedAndNoPointComesTwice) {
  const Space space({Choice("c", 3), QUniform("q", 0, 1, 0.5), When(Integer("i", 0, 4), "c", 1)});
  for (const std::string name : {"random", "grid", "sobol", "tpe", "gp", "cmaes"}) {
    SCOPED_TRACE(name);
    Study study(space, {.search_alg = name});
    std::set<std::string> points;
    int trials = 0;
    while (const std::optional<Trial> trial = study.Ask()) {
      points.insert(::testing::PrintToString(trial->point));
      study.Tell(trial->number, trial->point[1]);
      ASSERT_LE(++trials, 18);
    }
    EXPECT_EQ(points.size(), 3 + 3 + 12);
    EXPECT_EQ(trials, 18);
    EXPECT_FALSE(study.Ask());
  }
}

TEST(StudyTest, DuplicatesComeWhenTheyMay) {
  Study study(Space({Choice("c", 2)}), {.search_alg = "random", .allow_duplicates = true});
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(study.Ask());
  Study grid(Space({Grid("g", 2)}), {.search_alg = "random"});
  for (int i = 0; i < 4; ++i) EXPECT_THAT(grid.Ask()->point, ElementsAre(i % 2));
}

TEST(StudyTest, ManyThreadsShareAStudy) {
  Study study(Floats(), {.search_alg = "tpe"});
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&study] {
        for (int i = 0; i < 50; ++i) {
          const Trial trial = study.Ask().value();
          study.AddReport(trial.number, 1, 0.5);
          study.Tell(trial.number, Loss(trial.point));
        }
      });
    }
  }
  EXPECT_EQ(study.size(), 200);
  for (const Trial& trial : study.Trials()) EXPECT_EQ(trial.state, TrialState::kFinished);
}

TEST(StudyTest, ConfigHasTheValuesOfTheParametersThatExist) {
  Study study(Space({Choice("c", std::vector<Value>{std::string("a"), std::string("b")}),
                     When(Integer("i", 2, 3), "c", 1)}),
              {.points = {{1, NAN}, {0, NAN}}});
  const auto first = study.Config(study.Ask().value());
  EXPECT_EQ(first.at("c"), Value(std::string("b")));
  EXPECT_EQ(first.at("i"), Value(std::int64_t{2}));
  EXPECT_EQ(study.Config(study.Ask().value()).size(), 1);
}

TEST(StudyTest, BadCallsSayWhatIsWrong) {
  const auto refuses = [](const auto& call, Code code, const std::string& text) {
    EXPECT_THAT(ErrorOf(call), IsError(code, HasSubstr(text)));
  };
  Study study(Floats(), {.batch = 2});
  study.Ask();
  study.Ask();
  refuses([&] { study.Ask(); }, Code::kFailedPrecondition, "2 trials of the batch still run");
  study.Tell(0, 1);
  refuses([&] { study.Tell(0, 1); }, Code::kFailedPrecondition, "trial 0 is finished, not running");
  refuses([&] { study.Tell(7, 1); }, Code::kInvalidArgument, "there is no trial 7");
  study.AddReport(1, 3, 0.5);
  refuses([&] { study.AddReport(1, 2, 0.5); }, Code::kInvalidArgument,
          "does not come after step 3");
  refuses([] { Study(Floats(), {.search_alg = "tpee"}); }, Code::kInvalidArgument,
          "search_alg 'tpee' is not known; known: ");
  refuses(
      [] {
        Study(Floats(), {.search = {.parameters = {{"gama", 1}}}});
      },
      Code::kInvalidArgument, "has no parameter 'gama'; known: ");
  refuses([] { Study(Floats(), {.points = {{1}}}); }, Code::kInvalidArgument,
          "has 1 numbers for 2");
  refuses(
      [] {
        Study(Floats(), {.points = {{9, 1}}});
      },
      Code::kInvalidArgument, "x: 9 is not a value");
  refuses([] { Study(Space({Grid("g", 2)}), {.search_alg = "tpe"}); }, Code::kInvalidArgument,
          "Grid search parameters cannot be automatically converted");
  refuses([] { Study(Floats(), {.search_alg = "grid"}); }, Code::kInvalidArgument, "finite space");
}

}  // namespace
}  // namespace orca::tune
