// kill -9 of the writer at random moments (F48, oracle O4).
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "orca/tune/store.h"
#include "testing/folder.h"
#include "testing/processes.h"
#include "testing/seed.h"

namespace orca::tune {
namespace {

constexpr std::int64_t kTrials = 200;
constexpr std::int64_t kSteps = 6;

double ValueOf(std::int64_t trial, std::int64_t step) {
  return static_cast<double>(trial) + static_cast<double>(step) / 64;
}

/// A study of kTrials trials, two at a time. Says what it is about to act on, after the commit.
void Drive(const std::filesystem::path& file, const testing::Voice& voice) {
  StudyStore store = StudyStore::Open(file);
  auto info = store.Resume("study");
  if (!info) info = store.Create({.name = "study"});
  std::map<std::int64_t, std::int64_t> running;  // trial -> step, from its beginning
  std::int64_t started = 0;
  for (const auto& trial : store.Trials(info->id)) {
    started = trial.number + 1;
    if (trial.state == TrialState::kPaused)
      store.Commit({.kind = EventKind::kResume, .trial = trial.number});
    if (trial.ended == 0) running[trial.number] = 0;
  }
  const auto commit = [&](const Event& event) {
    store.Commit(event);
    voice.Tell(std::string(EventKindName(event.kind)) + " " + std::to_string(event.trial));
  };
  while (started < kTrials || !running.empty()) {
    while (running.size() < 2 && started < kTrials) {
      commit({.kind = EventKind::kStart, .trial = started, .config = R"({"lr": 0.1})"});
      running[started++] = 0;
    }
    std::vector<std::int64_t> ended;
    for (auto& [trial, step] : running) {
      ++step;
      store.Report(trial, step, ValueOf(trial, step));
      if (step == 3 && trial % 3 == 0) {
        store.Commit({.kind = EventKind::kPause, .trial = trial, .step = step});
        store.Commit({.kind = EventKind::kResume, .trial = trial});
      }
      if (step < kSteps) continue;
      Event end{.kind = EventKind::kFinish, .trial = trial, .value = ValueOf(trial, step)};
      if (trial % 5 == 4) end.kind = EventKind::kStop;
      if (trial % 7 == 6) end.kind = EventKind::kFail;
      commit(end);
      ended.push_back(trial);
    }
    for (const std::int64_t trial : ended) running.erase(trial);
  }
  voice.Tell("all");
}

/// Everything that was told is in the file, once, and nothing fits ill.
void Check(const std::filesystem::path& file, const std::multiset<std::string>& told) {
  // It may have been killed before there was a file or a study; then it has told nothing.
  if (told.empty()) return;
  const StudyStore store = StudyStore::OpenToRead(file);
  ASSERT_EQ(store.Studies().size(), 1U);
  std::multiset<std::string> stored;
  std::int64_t sequence = 0;
  for (const auto& event : store.Events(1)) {
    EXPECT_GT(event.sequence, sequence);
    sequence = event.sequence;
    if (event.kind != EventKind::kPause && event.kind != EventKind::kResume)
      stored.insert(std::string(EventKindName(event.kind)) + " " + std::to_string(event.trial));
  }
  for (const auto& line : told) EXPECT_EQ(stored.count(line), 1U) << line;
  std::int64_t expected = 0;
  for (const auto& trial : store.Trials(1)) {
    EXPECT_EQ(trial.number, expected++);
    const std::string number = std::to_string(trial.number);
    EXPECT_EQ(stored.count("start " + number), 1U);
    const std::size_t ends = stored.count("finish " + number) + stored.count("stop " + number) +
                             stored.count("fail " + number);
    EXPECT_EQ(ends, trial.ended == 0 ? 0U : 1U);
    // A trial's reports come before its end.
    if (trial.ended == 0) continue;
    const auto reports = store.Reports(1, trial.number);
    ASSERT_EQ(reports.size(), static_cast<std::size_t>(kSteps));
    for (const auto& report : reports) EXPECT_EQ(report.value, ValueOf(trial.number, report.step));
  }
}

TEST(StoreCrashTest, F48TwoHundredKillsLoseNoDecisionAndMakeNoneTwice) {
  std::mt19937_64 random(testing::TestSeed());
  int kills = 0;
  const int wanted = testing::kSanitized ? 40 : 200;
  while (kills < wanted && !::testing::Test::HasFailure()) {
    const TestFolder folder;
    const auto file = folder.path() / "study.db";
    std::multiset<std::string> told;
    for (bool all = false; !all;) {
      testing::Child child([&](const testing::Voice& voice) { Drive(file, voice); });
      // Some lines, and then a moment that no line marks.
      for (std::uint64_t lines = random() % 14; lines > 0 && !all; --lines) {
        const auto line = child.Listen();
        if (!line) break;
        all = *line == "all";
        if (!all) told.insert(*line);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      child.Signal(SIGKILL);
      while (const auto line = child.Listen()) {
        all = all || *line == "all";
        if (*line != "all") told.insert(*line);
      }
      child.Wait();
      kills += all ? 0 : 1;
      const auto died = told.lower_bound("died");
      ASSERT_FALSE(died != told.end() && died->starts_with("died")) << *died;
      Check(file, told);
      ASSERT_FALSE(::testing::Test::HasFailure()) << "kill " << kills;
    }
    EXPECT_EQ(StudyStore::OpenToRead(file).Trials(1).size(), static_cast<std::size_t>(kTrials));
  }
  std::printf("%d kills\n", kills);
}

}  // namespace
}  // namespace orca::tune
