// Studies with schedulers and a store: killed at any moment, they go on with no trial lost and none
// twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <map>
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
#include "tune/sqlite.h"

namespace orca::tune {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

// One trial at a time, each from the step whose state it would have stored; `together`: the end of
// one and the start of the next in one commit.
void RunAll(Study& study, bool together = false) {
  std::optional<Trial> trial;
  while (true) {
    if (trial) {
      // It is there already.
    } else if (study.size() < kTrials) {
      if (study.CanAsk()) trial = study.Ask();
    } else {
      trial = study.AskAgain();
    }
    if (!trial) return;
    const std::int64_t number = trial->number;
    for (std::int64_t step = trial->resumed_step + 1;; ++step) {
      const double value = Value(*trial, step);
      const Decision decision = study.AddReport(number, step, value);
      if (decision != Decision::kStop && decision != Decision::kPause && step < kEpochs) continue;
      trial.reset();
      if (decision == Decision::kStop || decision == Decision::kPause) break;
      if (together) {
        const auto next = study.TellAndAsk({{number, value}}, study.size() < kTrials ? 1 : 0);
        if (!next.empty()) trial = next[0];
      } else {
        study.Tell(number, value);
      }
      break;
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
  const auto lives = [&](std::chrono::microseconds time, bool together) {
    const pid_t child = ::fork();
    if (child == 0) {
      Study study(Floats(), Stored());
      RunAll(study, together);
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
  ASSERT_TRUE(lives(std::chrono::seconds(60), false));
  const auto whole = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - begin);
  std::mt19937_64 random(testing::TestSeed());
  int kills = 0;
  for (int schedule = 0; schedule < kSchedules; ++schedule) {
    std::filesystem::remove_all(folder_.path());
    std::filesystem::create_directories(folder_.path());
    while (!lives(whole * static_cast<int>(random() % 120) / 100, random() % 2 == 0)) ++kills;
    Study study(Floats(), Stored());
    EXPECT_EQ(Outcomes(study), expected) << "schedule " << schedule;
    EXPECT_EQ(study.Best()->number, undisturbed.Best()->number);
  }
  EXPECT_TRUE(testing::kSanitized || kills > 0);
}

// Trials side by side, in any order, for a while; says whether all is done. Others ask between a
// trial's last report and its end.
bool RunSome(Study& study, std::mt19937_64& random, std::int64_t trials) {
  struct Live {
    Trial trial;
    std::int64_t step;
  };
  std::vector<Live> live;
  for (auto left = random() % 80; left > 0; --left) {
    if (live.size() < 1 + random() % 8) {
      std::optional<Trial> next;
      if (study.size() >= trials) {
        next = study.AskAgain();
      } else if (study.CanAsk() && random() % 4 != 0) {  // Or it is asked later.
        next = study.Ask();
      }
      if (next) live.push_back({*next, next->resumed_step});
      if (!next && live.empty() && study.size() >= trials) return true;
    }
    if (live.empty()) continue;
    const std::size_t at = random() % live.size();
    Live& one = live[at];
    const std::int64_t number = one.trial.number;
    if (one.step >= kEpochs) {
      study.Tell(number, Value(one.trial, one.step));
    } else {
      ++one.step;
      const Decision decision = study.AddReport(number, one.step, Value(one.trial, one.step));
      if (decision == Decision::kContinue || decision == Decision::kSave) continue;
    }
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return false;
}

// All that a study knows of its trials, but for who waits to be asked for again.
auto Known(const Study& study) {
  std::vector<std::tuple<Outcome, std::string, std::int64_t, std::int64_t>> found;
  const std::vector<Outcome> outcomes = Outcomes(study);
  for (const Trial& trial : study.Trials()) {
    found.emplace_back(outcomes[static_cast<std::size_t>(trial.number)], study.ConfigText(trial),
                       trial.clones, trial.retries);
  }
  return found;
}

void GoOnHoweverOftenTheFileIsOpened(const std::filesystem::path& folder,
                                     const StudyOptions& options) {
  std::mt19937_64 random(testing::TestSeed());
  for (int schedule = 0; schedule < (testing::kSanitized ? 4 : 40); ++schedule) {
    // With few trials the workers soon find nothing to begin.
    const std::int64_t trials = schedule % 2 == 0 ? kTrials : 2 + schedule % 4;
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    int openings = 0;
    decltype(Known(std::declval<Study&>())) known;
    for (bool is_done = false; !is_done; ++openings) {
      ASSERT_LT(openings, 1000);
      Study study(Floats(), options);
      ASSERT_EQ(Known(study), known) << "schedule " << schedule;
      is_done = RunSome(study, random, trials);
      known = Known(study);
    }
    const Study study(Floats(), options);
    EXPECT_EQ(study.size(), trials);
    EXPECT_EQ(study.Progress().counts[static_cast<std::size_t>(TrialState::kRunning)], 0);
    EXPECT_TRUE(trials < kTrials || study.Best());
  }
}

TEST_P(StudyStorageTest, TrialsSideBySideGoOnHoweverOftenTheFileIsOpened) {
  GoOnHoweverOftenTheFileIsOpened(folder_.path(), Stored());
}

TEST(PbtStorageTest, TrialsSideBySideGoOnHoweverOftenTheFileIsOpened) {
  for (
      const char* parameters :
      {R"({"perturbation_interval": 2, "hyperparam_mutations": {"x": {"lower": -5, "upper": 5}}})",
       R"({"perturbation_interval": 2, "synch": true, "hyperparam_mutations": {"x": [1, 2, 3]}})"}) {
    const TestFolder folder;
    StudyOptions options = Options("pbt", parameters);
    options.search_alg = "random";
    options.storage = {.file = folder.path() / "study.db", .resume = true};
    GoOnHoweverOftenTheFileIsOpened(folder.path(), options);
  }
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
  // A decision costs as much after 10,000 trials as after one: nothing of all of them is in it.
  for (const Attribute& attribute : store.Attributes(studies[0].id)) EXPECT_GE(attribute.trial, 0);
  EXPECT_THAT(ends, ::testing::Each(::testing::Le(1)));  // Some stay paused.
}

INSTANTIATE_TEST_SUITE_P(
    All, StudyStorageTest,
    ::testing::Values(Scheduled{"fifo", "{}"},
                      Scheduled{"async_hyperband", R"({"max_t": 9, "reduction_factor": 3})"},
                      Scheduled{"async_hyperband",
                                R"({"max_t": 9, "reduction_factor": 3, "form": "promotion"})"},
                      Scheduled{"hyperband", R"({"max_t": 9, "reduction_factor": 3})"},
                      Scheduled{"hb_bohb", R"({"max_t": 9, "reduction_factor": 3})"},
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
  StudyOptions options = Stored();
  options.storage.metric = "mae";
  EXPECT_THAT(ErrorOf([&] { Study study(Floats(), options); }),
              IsError(Code::kFailedPrecondition, HasSubstr("begun with another metric")));
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

TEST_F(OneStudyTest, AnEndAndTheStartBehindItAreOneCommit) {
  {
    Study study(Floats(), Stored());
    const auto first = study.Ask();
    const auto second = study.TellAndAsk({{first->number, 1.0}});
    ASSERT_EQ(second.size(), 1U);
    EXPECT_EQ(second[0].number, 1);
    EXPECT_THAT(study.TellAndAsk({{1, std::nan("")}}, 0), IsEmpty());
    EXPECT_EQ(study.At(1).state, TrialState::kFailed);
    EXPECT_EQ(study.Best()->number, 0);
  }
  const StudyStore store = StudyStore::OpenToRead(folder_.path() / "study.db");
  const auto events = store.Events(store.Studies()[0].id);
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[1].kind, EventKind::kFinish);
  EXPECT_EQ(events[2].kind, EventKind::kStart);
  EXPECT_EQ(events[1].time, events[2].time);  // A commit reads the clock once.
  EXPECT_EQ(events[3].kind, EventKind::kFail);
}

TEST_F(OneStudyTest, ManyEndsAndStartsAreOneCommit) {
  std::vector<Point> points;
  {
    Study study(Floats(), Stored());
    auto trials = study.TellAndAsk({}, 3);
    ASSERT_EQ(trials.size(), 3U);
    trials = study.TellAndAsk({{2, 2.0}, {0, 0.0}, {1, 1.0}}, 2);
    ASSERT_EQ(trials.size(), 2U);
    EXPECT_EQ(trials[1].number, 4);
    for (const Trial& trial : study.Trials()) points.push_back(trial.point);
  }
  const StudyStore store = StudyStore::OpenToRead(folder_.path() / "study.db");
  const auto events = store.Events(store.Studies()[0].id);
  ASSERT_EQ(events.size(), 8U);
  EXPECT_EQ(events[0].time, events[2].time);
  EXPECT_EQ(events[3].time, events[7].time);  // A commit reads the clock once.
  Study one_by_one(Floats(), [this] {
    auto options = Stored();
    options.storage = {};
    return options;
  }());
  for (const Point& point : points) EXPECT_EQ(one_by_one.Ask()->point, point);
}

TEST_F(OneStudyTest, AnEndIsStoredWhenThereIsNoNextTrial) {
  const auto options = Stored();
  {
    Study study(Space({Choice("kind", {std::string("a"), true})}), options);
    const auto first = study.Ask();
    const auto second = study.TellAndAsk({{first->number, 1.0}}, 3);
    ASSERT_EQ(second.size(), 1U);  // There are no more points.
    EXPECT_THAT(study.TellAndAsk({{second[0].number, 2.0}}), IsEmpty());
    EXPECT_THAT(ErrorOf([&] {
                  study.TellAndAsk({{second[0].number, 2.0}});
                }),
                IsError(Code::kFailedPrecondition, HasSubstr("not running")));
  }
  Study study(Space({Choice("kind", {std::string("a"), true})}), options);
  EXPECT_EQ(study.At(1).value, 2.0);
}

TEST_F(OneStudyTest, AStudyThatLostATrialIsRefused) {
  {
    Study study(Floats(), Stored());
    for (int trial = 0; trial < 3; ++trial) study.Tell(study.Ask()->number, trial);
  }
  Database(folder_.path() / "study.db", Database::Access::kWrite)
      .Run("DELETE FROM trials WHERE number = 1");
  EXPECT_THAT(ErrorOf([&] { Study study(Floats(), Stored()); }),
              IsError(Code::kFailedPrecondition, HasSubstr("has lost trial 1")));
  StudyOptions options = Stored(5, false);
  options.warm_start = folder_.path() / "study.db";
  EXPECT_EQ(Study(Floats(), options).added(), 2);
}

TEST_F(OneStudyTest, TheLastEpochIsNotStopped) {
  Study study(Floats(), Options("async_hyperband", R"({"max_t": 9})"));
  const auto trial = study.Ask();
  for (std::int64_t step = 1; step <= kEpochs; ++step)
    EXPECT_EQ(study.AddReport(trial->number, step, 1.0), Decision::kContinue);
  study.Tell(trial->number, 1.0);
  EXPECT_EQ(study.Best()->number, 0);
}

// Median stopping lets it go on because nobody waits: that is not in the file.
TEST_F(OneStudyTest, ATrialThatWentOnGoesOn) {
  StudyOptions options = Stored();
  options.scheduler = "medianstopping";
  options.scheduler_parameters = R"({"grace_period": 1})";
  {
    Study study(Floats(), options);
    EXPECT_EQ(study.Ask()->number, 0);
    EXPECT_FALSE(study.AskAgain());
    EXPECT_EQ(study.AddReport(0, 1, 1.0), Decision::kContinue);
  }
  Study study(Floats(), options);
  EXPECT_EQ(study.Trials()[0].state, TrialState::kRunning);
  EXPECT_EQ(study.Ask()->number, 0);
}

TEST_F(OneStudyTest, ASamplerKnowsOfTrialsThatGoOnWhatItKnewBefore) {
  StudyOptions options =
      Options("async_hyperband", R"({"max_t": 9, "reduction_factor": 3, "form": "promotion"})");
  options.search.parameters = {{"n_startup_trials", 4}};
  // Until one of the later trials goes on.
  const auto run = [](Study& study) {
    while (true) {
      const Trial trial = *study.Ask();
      if (trial.resumed_step > 0 && trial.number > 5) return trial.number;
      for (std::int64_t step = trial.resumed_step + 1;; ++step) {
        if (study.AddReport(trial.number, step, Value(trial, step)) == Decision::kPause) break;
        if (step == kEpochs) study.Tell(trial.number, Value(trial, step));
        if (step == kEpochs) break;
      }
    }
  };
  Study kept(Floats(), options);
  const std::int64_t goes_on = run(kept);
  options.storage = {.file = folder_.path() / "study.db", .resume = true};
  {
    Study stored(Floats(), options);
    ASSERT_EQ(run(stored), goes_on);
  }
  Study opened(Floats(), options);
  ASSERT_EQ(opened.Ask()->number, goes_on);
  EXPECT_EQ(opened.Ask()->point, kept.Ask()->point);
}

TEST_F(OneStudyTest, APbtStudyKeepsWhatItDidInFiles) {
  StudyOptions options = Options(
      "pbt",
      R"({"perturbation_interval": 1, "hyperparam_mutations": {"x": {"lower": -5, "upper": 5}}})");
  options.search_alg = "random";
  options.storage = {.file = folder_.path() / "study.db", .resume = true};
  std::vector<std::string> policies;
  std::mt19937_64 random(testing::TestSeed());
  for (bool is_done = false; !is_done;) {
    Study study(Floats(), options);
    ASSERT_EQ(study.Policies(), policies);
    is_done = RunSome(study, random, 6);
    policies = study.Policies();
    std::int64_t clones = 0;
    for (const Trial& trial : study.Trials()) clones += trial.clones;
    EXPECT_EQ(static_cast<std::int64_t>(policies.size()), clones);
  }
  ASSERT_FALSE(policies.empty());
  EXPECT_TRUE(PolicyFiles({}).empty());
  EXPECT_EQ(
      PolicyFiles({R"(["1","0",2,3,{},{}])", R"(["2","1",4,4,{},{}])", R"(["1","2",5,5,{},{}])"}),
      (std::map<std::string, std::string>{
          {"pbt_global.txt",
           "[\"1\",\"0\",2,3,{},{}]\n[\"2\",\"1\",4,4,{},{}]\n[\"1\",\"2\",5,5,{},{}]\n"},
          {"pbt_policy_00001.txt",
           "[\"1\",\"0\",2,3,{},{}]\n[\"2\",\"1\",4,4,{},{}]\n[\"1\",\"2\",5,5,{},{}]\n"},
          {"pbt_policy_00002.txt", "[\"1\",\"0\",2,3,{},{}]\n[\"2\",\"1\",4,4,{},{}]\n"}}));
}

TEST_F(OneStudyTest, AfterAFailedWriteItIsOpenedAgain) {
  {
    Study study(Floats(), Stored());
    const auto first = study.Ask();
    Database(folder_.path() / "study.db", Database::Access::kWrite)
        .Run("ALTER TABLE events RENAME TO others");
    const Error error = ErrorOf([&] { study.Ask(); });
    EXPECT_THAT(error.what(), HasSubstr("events"));
    Database(folder_.path() / "study.db", Database::Access::kWrite)
        .Run("ALTER TABLE others RENAME TO events");
    EXPECT_THAT(ErrorOf([&] { study.Tell(first->number, 1.0); }),
                IsError(Code::kFailedPrecondition, HasSubstr("open the study again")));
  }
  Study study(Floats(), Stored());
  EXPECT_EQ(study.size(), 1);
  study.Tell(study.Ask()->number, 1.0);
  EXPECT_EQ(study.Ask()->number, 1);
}

TEST_F(OneStudyTest, TextsAndConstantsAreKept) {
  StudyOptions options = Stored();
  options.storage.constants = R"({"depth": 3})";
  {
    Study study(Floats(), options);
    study.Ask();
    study.SetMemo(0, "first");
    study.SetMemo(0, "second");
    study.SetMemo("all");
    EXPECT_EQ(study.memo(), "all");
  }
  {
    Study study(Floats(), options);
    EXPECT_EQ(study.At(0).memo, "second");
    EXPECT_EQ(study.memo(), "all");
  }
  options.storage.constants = R"({"depth": 4})";
  EXPECT_THAT(ErrorOf([&] { Study study(Floats(), options); }),
              IsError(Code::kFailedPrecondition, HasSubstr("begun with another constants")));
}

TEST_F(OneStudyTest, AFileWhoseMakerDiedHasNoSeed) {
  const std::filesystem::path file = folder_.path() / "study.db";
  EXPECT_EQ(StoredSeed(file, "study"), std::nullopt);
  std::ofstream(file).close();
  EXPECT_EQ(StoredSeed(file, "study"), std::nullopt);
  { Study study(Floats(), Stored(7)); }
  EXPECT_EQ(StoredSeed(file, "study"), 7U);
}

TEST_F(OneStudyTest, AFunctionOfTheUserCannotCallTheStudyThatCallsIt) {
  StudyOptions options = Options("pbt", R"({"perturbation_interval": 1})");
  options.search_alg = "random";
  const Study* called = nullptr;
  options.scheduling.explore = [&](const std::string&, std::int64_t) {
    return std::to_string(called->size());
  };
  Study study(Floats(), options);
  called = &study;
  std::vector<Trial> trials;
  for (int i = 0; i < 4; ++i) trials.push_back(*study.Ask());
  for (const Trial& trial : trials) study.AddReport(trial.number, 1, Value(trial, 1));
  EXPECT_THAT(ErrorOf([&] {
                while (study.AskAgain()) {
                }
              }),
              IsError(Code::kFailedPrecondition, HasSubstr("cannot call the study")));
  EXPECT_EQ(study.size(), 4);
}

TEST_F(OneStudyTest, WhoWantsNoNewTrialGetsAPausedOne) {
  Study study(Floats(), Options("medianstopping", R"({"grace_period": 1})"));
  const auto trial = study.Ask();
  ASSERT_TRUE(study.CanAsk());
  ASSERT_EQ(study.AddReport(trial->number, 1, 1.0), Decision::kPause);  // Others may start.
  ASSERT_TRUE(study.CanAsk());
  EXPECT_EQ(study.AskAgain()->number, trial->number);
}

TEST_F(OneStudyTest, WhatIsStoppedWhileItIsPausedIsTold) {
  Study study(Floats(), Options("hyperband", R"({"max_t": 9, "reduction_factor": 3})"));
  RunAll(study);
  std::vector<std::int64_t> stopped = study.TakeStopped();
  std::sort(stopped.begin(), stopped.end());
  std::vector<std::int64_t> pruned;
  for (const Trial& trial : study.Trials())
    if (trial.state == TrialState::kPruned) pruned.push_back(trial.number);
  EXPECT_FALSE(pruned.empty());
  EXPECT_EQ(stopped, pruned);
  EXPECT_TRUE(study.TakeStopped().empty());
}

}  // namespace
}  // namespace orca::tune
