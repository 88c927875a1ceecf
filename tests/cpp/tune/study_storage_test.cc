// Studies with schedulers and a store: killed at any moment, they go on with no trial lost and none
// twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "net/expect_error.h"
#include "orca/core/error.h"
#include "orca/tune/store.h"
#include "orca/tune/study.h"
#include "testing/folder.h"
#include "testing/seed.h"

namespace orca::tune {
namespace {

using ::testing::HasSubstr;

constexpr int kSchedules = testing::kSanitized ? 3 : 50;  // For each scheduler.
constexpr std::int64_t kTrials = 24;
constexpr std::int64_t kEpochs = 9;

Space Floats() { return Space({Uniform("x", -5, 5), Choice("kind", {std::string("a"), true})}); }

StudyOptions Options(const std::string& scheduler, const std::string& parameters) {
  return {.search_alg = "tpe",
          .scheduler = scheduler,
          .scheduler_parameters = parameters,
          .scheduling = {.epochs = kEpochs},
          .search = {.seed = 5}};
}

double Value(const Trial& trial, std::int64_t step) {
  return trial.point[0] * trial.point[0] + trial.point[1] + 10.0 / static_cast<double>(step);
}

// One trial at a time, each from the step whose state it would have stored.
void RunAll(Study& study) {
  while (true) {
    std::optional<Trial> trial;
    if (study.size() < kTrials) {
      if (study.CanAsk()) trial = study.Ask();
    } else {
      trial = study.AskAgain();
    }
    if (!trial) return;
    for (std::int64_t step = trial->resumed_step + 1;; ++step) {
      const Decision decision = study.AddReport(trial->number, step, Value(*trial, step));
      if (decision == Decision::kStop || decision == Decision::kPause) break;
      if (step == kEpochs) {
        study.Tell(trial->number, Value(*trial, step));
        break;
      }
    }
  }
}

using Outcome = std::tuple<Point, TrialState, std::vector<std::pair<std::int64_t, double>>>;

std::vector<Outcome> Outcomes(const Study& study) {
  std::vector<Outcome> found;
  for (const Trial& trial : study.Trials()) {
    std::vector<std::pair<std::int64_t, double>> reports;
    for (const Report& report : trial.reports) reports.emplace_back(report.step, report.value);
    found.emplace_back(trial.point, trial.state, reports);
  }
  return found;
}

struct Scheduled {
  std::string name;
  std::string parameters;
};

class StudyStorageTest : public ::testing::TestWithParam<Scheduled> {
 protected:
  StudyOptions Stored(bool resume = true) const {
    StudyOptions options = Options(GetParam().name, GetParam().parameters);
    options.storage = {.file = folder_.path() / "study.db", .resume = resume};
    return options;
  }
  TestFolder folder_;
};

TEST_P(StudyStorageTest, F47AKilledStudyEndsAsIfNothingHadHappened) {
  Study undisturbed(Floats(), Options(GetParam().name, GetParam().parameters));
  RunAll(undisturbed);
  const std::vector<Outcome> expected = Outcomes(undisturbed);
  ASSERT_EQ(expected.size(), kTrials);
  // Runs in a process of its own, which may live so long; says whether it came to its end.
  const auto lives = [&](std::chrono::microseconds time) {
    const pid_t child = ::fork();
    if (child == 0) {
      Study study(Floats(), Stored());
      RunAll(study);
      ::_exit(0);
    }
    const auto end = std::chrono::steady_clock::now() + time;
    int status = 0;
    pid_t ended = 0;
    while (ended == 0 && std::chrono::steady_clock::now() < end) {
      ended = ::waitpid(child, &status, WNOHANG);
      if (ended == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (ended == 0) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
    }
    EXPECT_TRUE(!WIFEXITED(status) || WEXITSTATUS(status) == 0);
    return static_cast<bool>(WIFEXITED(status));
  };
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(lives(std::chrono::seconds(60)));
  const auto whole = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - begin);
  std::mt19937_64 random(testing::TestSeed());
  int kills = 0;
  for (int schedule = 0; schedule < kSchedules; ++schedule) {
    std::filesystem::remove_all(folder_.path());
    std::filesystem::create_directories(folder_.path());
    while (!lives(whole * static_cast<int>(random() % 120) / 100)) ++kills;
    Study study(Floats(), Stored());
    EXPECT_EQ(Outcomes(study), expected) << "schedule " << schedule;
    EXPECT_EQ(study.Best()->number, undisturbed.Best()->number);
  }
  EXPECT_TRUE(testing::kSanitized || kills > 0);
}

TEST_P(StudyStorageTest, EveryDecisionIsStoredOnce) {
  {
    Study study(Floats(), Stored());
    RunAll(study);
  }
  const StudyStore store = StudyStore::OpenToRead(folder_.path() / "study.db");
  const auto studies = store.Studies();
  ASSERT_EQ(studies.size(), 1U);
  std::vector<int> starts(kTrials);
  std::vector<int> ends(kTrials);
  for (const Event& event : store.Events(studies[0].id)) {
    const auto number = static_cast<std::size_t>(event.trial);
    if (event.kind == EventKind::kStart) ++starts[number];
    if (event.kind == EventKind::kStop || event.kind == EventKind::kFinish) ++ends[number];
  }
  EXPECT_THAT(starts, ::testing::Each(1));
  EXPECT_THAT(ends, ::testing::Each(::testing::Le(1)));  // Some stay paused.
}

INSTANTIATE_TEST_SUITE_P(
    All, StudyStorageTest,
    ::testing::Values(Scheduled{"fifo", "{}"},
                      Scheduled{"async_hyperband", R"({"max_t": 9, "reduction_factor": 3})"},
                      Scheduled{"async_hyperband",
                                R"({"max_t": 9, "reduction_factor": 3, "form": "promotion"})"},
                      Scheduled{"hyperband", R"({"max_t": 9, "reduction_factor": 3})"},
                      Scheduled{"medianstopping", R"({"grace_period": 2})"}));

class OneStudyTest : public ::testing::Test {
 protected:
  StudyOptions Stored(std::uint64_t seed = 5, bool resume = true) const {
    return {.search_alg = "random",
            .storage = {.file = folder_.path() / "study.db", .resume = resume},
            .search = {.seed = seed}};
  }
  TestFolder folder_;
};

TEST_F(OneStudyTest, AStudyGoesOnOnlyWithWhatItBeganWith) {
  { Study study(Floats(), Stored()); }
  EXPECT_THAT(ErrorOf([&] { Study study(Floats(), Stored(6)); }),
              IsError(Code::kFailedPrecondition, HasSubstr("begun with another seed")));
  EXPECT_THAT(ErrorOf([&] { Study study(Space({Uniform("x", -5, 6)}), Stored()); }),
              IsError(Code::kFailedPrecondition, HasSubstr("begun with another space")));
  { Study study(Floats(), Stored(6, false)); }  // Beside the old one.
  EXPECT_EQ(StudyStore::OpenToRead(folder_.path() / "study.db").Studies().size(), 2U);
}

TEST_F(OneStudyTest, WhatRanIsAskedForFirstAndTrialsOfOthersStay) {
  Point asked;
  {
    Study study(Floats(), Stored());
    study.Add({.point = {1, 0}, .state = TrialState::kFinished, .value = 3});
    asked = study.Ask()->point;
    study.Ask();
    study.Fail(2, "for the test");
  }
  Study study(Floats(), Stored());
  EXPECT_EQ(study.size(), 3);
  EXPECT_EQ(study.At(0).value, 3);
  EXPECT_EQ(study.At(2).error, "for the test");
  const auto again = study.Ask();
  EXPECT_EQ(again->number, 1);
  EXPECT_EQ(again->point, asked);
  EXPECT_EQ(study.Ask()->number, 3);
}

TEST_F(OneStudyTest, TheLastEpochIsNotStopped) {
  Study study(Floats(), Options("async_hyperband", R"({"max_t": 9})"));
  const auto trial = study.Ask();
  for (std::int64_t step = 1; step <= kEpochs; ++step)
    EXPECT_EQ(study.AddReport(trial->number, step, 1.0), Decision::kContinue);
  study.Tell(trial->number, 1.0);
  EXPECT_EQ(study.Best()->number, 0);
}

}  // namespace
}  // namespace orca::tune
