#include "orca/tune/study_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "orca/core/error.h"
#include "orca/tune/store.h"
#include "orca/tune/study.h"
#include "testing/folder.h"
#include "tune/sqlite.h"

namespace orca::tune {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

Space Numbers() { return Space({Uniform("x", 0, 1), Choice("kind", {Value("a"), Value("b")})}); }

StudyOptions Options() {
  StudyOptions options;
  options.search_alg = "random";
  options.scheduling.epochs = 10;
  options.storage.metric = "loss";
  options.search.seed = 1;
  return options;
}

std::size_t Lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

TEST(StudyMonitorTest, LinesComeNowAndThenWithCountsBestAndTime) {
  Study study(Numbers(), Options());
  StudyMonitor monitor(study, {.trials = 4}, 100);
  EXPECT_THAT(monitor.Show(101, 80, 24), IsEmpty());
  study.Tell(study.Ask()->number, 0.5);
  study.Fail(study.Ask()->number, "boom");
  const auto third = study.Ask()->number;
  study.AddReport(third, 5, 0.25);
  const std::string line = monitor.Show(120, 80, 24);
  // Two trials and a half of four in 20 s.
  EXPECT_EQ(line,
            "3 of 4 trials: 1 running, 1 finished, 0 pruned, 1 failed; best loss 0.25 by trial 2; "
            "0:20 passed, about 0:12 left\n");
  for (int i = 0; i < 1000; ++i) study.AddReport(third, 6 + i, 0.25);
  EXPECT_THAT(monitor.Show(121, 80, 24), IsEmpty());
  int lines = 0;
  for (int now = 121; now < 121 + 24 * 3600; ++now)
    lines += monitor.Show(now, 80, 24).empty() ? 0 : 1;
  EXPECT_LT(lines, 330);  // A day.
  EXPECT_GT(lines, 250);
}

TEST(StudyMonitorTest, ATableFitsTheTerminal) {
  Study study(Numbers(), Options());
  StudyMonitor monitor(study, {.trials = 40, .is_terminal = true}, 0);
  for (int i = 0; i < 30; ++i) study.Ask();
  study.AddReport(7, 1, 0.125);
  const std::string first = monitor.Show(1, 60, 24);
  EXPECT_THAT(first, AllOf(HasSubstr("study: 30 of 40 trials"), HasSubstr("30 running"),
                           HasSubstr("best loss so far 0.125 in trial 7: kind="), HasSubstr("1/10"),
                           HasSubstr("and 14 more"), Not(HasSubstr("\x1b"))));
  const std::string second = monitor.Show(2, 60, 10);
  EXPECT_THAT(second, StartsWith("study: 30 of 40 trials"));
  EXPECT_LT(Lines(second), 10U);
  std::size_t widest = 0;
  for (std::size_t begin = 0; begin < first.size();) {
    const std::size_t end = first.find('\n', begin);
    widest = std::max(widest, end - begin);
    begin = end + 1;
  }
  EXPECT_LT(widest, 60U);
}

TEST(StudyMonitorTest, TheTableOfTheEndHasTheBestConfigurationAndEveryTrial) {
  Study study(Numbers(), Options());
  for (int i = 0; i < 3; ++i) study.Ask();
  study.AddReport(0, 1, 0.1);
  study.AddReport(0, 2, 0.9);
  study.Prune(0);
  study.Tell(1, 0.5);
  study.Fail(2, "Traceback\n  somewhere\nValueError: too small\n");
  const std::string by_value = StudyMonitor(study, {}, 0).Table();
  EXPECT_THAT(by_value, AllOf(HasSubstr("best: 0.5 in trial 1"), HasSubstr("x = "),
                              HasSubstr("1 finished, 1 pruned, 1 failed"),
                              HasSubstr("ValueError: too small"), Not(HasSubstr("Traceback"))));
  EXPECT_THAT(StudyMonitor(study, {.by_best_report = true}, 0).Table(),
              HasSubstr("best: 0.1 in trial 0"));
}

TEST(StudyRetryTest, ATrialRunsAgainAsOftenAsItMay) {
  StudyOptions options = Options();
  options.retries = 2;
  Study study(Numbers(), options);
  const auto number = study.Ask()->number;
  EXPECT_TRUE(study.Retry(number, "worker 17 died", 1));
  EXPECT_TRUE(study.Retry(number, "worker 18 died", 2));
  EXPECT_EQ(study.At(number).retries, 2);
  EXPECT_EQ(study.At(number).state, TrialState::kRunning);
  EXPECT_FALSE(study.Retry(number, "worker 19 died", 3));
  EXPECT_EQ(study.At(number).state, TrialState::kFailed);
  EXPECT_EQ(study.At(number).error, "worker 19 died");
}

TEST(StudyRetryTest, TheSameErrorTwiceAtTheSameStepIsTheLast) {
  StudyOptions options = Options();
  options.retries = 100;
  Study study(Numbers(), options);
  const auto number = study.Ask()->number;
  EXPECT_TRUE(study.Retry(number, "at 0x7f12\nWorkerFailed: process 17 died", 4));
  EXPECT_TRUE(study.Retry(number, "at 0x7f12\nWorkerFailed: process 17 died", 5));
  EXPECT_FALSE(study.Retry(number, "at 0x7f99\nWorkerFailed: process 4711 died\n", 5));
  EXPECT_EQ(study.At(number).state, TrialState::kFailed);
}

TEST(StudyRetryTest, RetriesAreInTheFileBeforeTheyAreActedOn) {
  const TestFolder folder;
  StudyOptions options = Options();
  options.retries = 2;
  options.storage.file = folder.path() / "study.db";
  options.storage.resume = true;
  {
    Study study(Numbers(), options);
    EXPECT_TRUE(study.Retry(study.Ask()->number, "boom", 3));
    // The process dies here.
  }
  Study study(Numbers(), options);
  const auto trial = study.Ask();
  ASSERT_TRUE(trial);
  EXPECT_EQ(trial->number, 0);
  EXPECT_EQ(trial->retries, 1);
  EXPECT_FALSE(study.Retry(0, "boom", 3));  // It knows the error.
  const auto events = StudyStore::OpenToRead(options.storage.file).Events(1);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[1].kind, EventKind::kRetry);
  EXPECT_EQ(events[1].error, "boom");
  EXPECT_EQ(StudyStore::OpenToRead(options.storage.file).Trials(1)[0].error, "boom");
}

TEST(StudyFormatTest, AFileOfBeforeGoesOn) {
  const TestFolder folder;
  StudyOptions options = Options();
  options.retries = 1;
  options.storage.file = folder.path() / "study.db";
  options.storage.resume = true;
  {  // The values of choices were not in it, and there were no retries.
    Study study(Space({Uniform("x", 0, 1), Choice("kind", 2)}), options);
    study.Tell(study.Ask()->number, 0.5);
  }
  Database(options.storage.file, Database::Access::kWrite).Run("PRAGMA user_version=1");
  {
    Study study(Numbers(), options);
    EXPECT_EQ(study.Best()->value, 0.5);
    EXPECT_TRUE(study.Retry(study.Ask()->number, "boom", 0));
  }
  EXPECT_EQ(Database(options.storage.file, Database::Access::kRead).Number("PRAGMA user_version"),
            2);
  EXPECT_THROW(Study(Space({Uniform("x", 0, 2), Choice("kind", 2)}), options), Error);
}

TEST(WarmStartTest, FinishedTrialsOfAnOlderStudyAreKnownAndNotCounted) {
  const TestFolder folder;
  StudyOptions old = Options();
  old.storage.file = folder.path() / "study.db";
  {
    Study study(Numbers(), old);
    for (int i = 0; i < 8; ++i) study.Ask();
    for (int i = 0; i < 6; ++i) study.Tell(i, i);
    study.Fail(6, "boom");
  }
  StudyOptions options = Options();
  options.search.seed = 2;
  options.warm_start = folder.path();
  for (const bool is_stored : {false, true}) {
    options.storage.file = is_stored ? folder.path() / "new.db" : "";
    options.storage.resume = true;
    for (int run = 0; run < 2; ++run) {  // A study that goes on takes them over once.
      Study study(Numbers(), options);
      EXPECT_EQ(study.added(), 6);
      EXPECT_EQ(study.Best()->value, 0);
      EXPECT_EQ(study.Progress().counts[2], 0);
      EXPECT_EQ(study.size(), is_stored ? 6 + run : 6);
      if (run == 0) {
        EXPECT_EQ(study.Ask()->number, 6);
      }
    }
  }
}

TEST(WarmStartTest, WhatDoesNotFitTheSpaceStaysOutAndOtherValuesAreRefused) {
  const TestFolder folder;
  StudyOptions old = Options();
  old.storage.file = folder.path() / "study.db";
  std::int64_t fitting = 0;
  {
    Study study(Numbers(), old);
    for (int i = 0; i < 20; ++i) {
      const auto trial = study.Ask();
      study.Tell(i, 1);
      fitting += trial->point[0] <= 0.5 ? 1 : 0;
    }
  }
  ASSERT_GT(fitting, 0);
  ASSERT_LT(fitting, 20);
  StudyOptions options = Options();
  options.warm_start = old.storage.file;
  const Parameter kind = Choice("kind", {Value("a"), Value("b")});
  EXPECT_EQ(Study(Space({Uniform("x", 0, 0.5), kind}), options).added(), fitting);
  // The parameters are found by their names.
  EXPECT_EQ(Study(Space({kind, Uniform("x", 0, 1)}), options).added(), 20);
  EXPECT_EQ(
      Study(Space({Choice("kind", {Value("b"), Value("a")}), Uniform("x", 0, 1)}), options).added(),
      0);
  EXPECT_EQ(Study(Space({kind, Uniform("x", 0, 1), Uniform("y", 0, 1)}), options).added(), 0);
  const auto error_of = [](const StudyOptions& given) {
    try {
      Study study(Numbers(), given);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  options.mode = Mode::kMax;
  EXPECT_THAT(error_of(options), HasSubstr("min of loss, this one for the max of loss"));
  options = Options();
  options.warm_start = folder.path() / "none.db";
  EXPECT_THAT(error_of(options), HasSubstr("none.db"));
}

}  // namespace
}  // namespace orca::tune
