// The store of studies: what a decision costs, and how long it takes to go on with 100,000 trials.
// The goal is 1 s.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "harness.h"
#include "orca/tune/store.h"
#include "orca/tune/study.h"

namespace {

using orca::bench::Now;
using orca::tune::Event;
using orca::tune::EventKind;
using orca::tune::StudyStore;

constexpr const char* kConfig = R"({"lr": 0.0123456789, "layers": 3, "width": 128, "drop": 0.25})";

void Decisions(const std::filesystem::path& file, bool full_sync, std::int64_t trials) {
  StudyStore store = StudyStore::Open(file, {.full_sync = full_sync});
  store.Create({.name = full_sync ? "full" : "normal"});
  const double begin = Now();
  for (std::int64_t trial = 0; trial < trials; ++trial) {
    store.Commit({.kind = EventKind::kStart, .trial = trial, .config = kConfig});
    for (std::int64_t step = 1; step <= 10; ++step) store.Report(trial, step, 0.5);
    store.Commit({.kind = EventKind::kFinish, .trial = trial, .value = 0.5});
  }
  const double seconds = Now() - begin;
  std::printf("RESULT store/commit/%s trials=%lld us_per_decision=%.1f\n",
              full_sync ? "full" : "normal", static_cast<long long>(trials),
              seconds / static_cast<double>(2 * trials) * 1e6);
}

void Resume(const std::filesystem::path& file, std::int64_t trials, std::int64_t steps) {
  {
    StudyStore store = StudyStore::Open(file);
    store.Create({.name = "large"});
    std::vector<Event> events;
    for (std::int64_t trial = 0; trial < trials; ++trial) {
      events = {{.kind = EventKind::kStart, .trial = trial, .config = kConfig}};
      store.Commit(events);
      for (std::int64_t step = 1; step <= steps; ++step) store.Report(trial, step, 0.5);
      if (trial % 10 != 0) store.Commit({.kind = EventKind::kFinish, .trial = trial, .value = 0.5});
    }
  }
  const double begin = Now();
  StudyStore store = StudyStore::Open(file);
  const double opened = Now();
  const auto info = store.Resume("large");
  const auto known = store.Trials(info->id);
  const double read = Now();
  const auto reports = store.Reports(info->id);
  const double all = Now();
  if (known.size() != static_cast<std::size_t>(trials) ||
      reports.size() != static_cast<std::size_t>(trials * steps)) {
    std::fprintf(stderr, "%zu trials and %zu reports came back\n", known.size(), reports.size());
    std::exit(1);
  }
  std::printf(
      "RESULT store/resume trials=%lld reports=%zu open_s=%.3f trials_s=%.3f reports_s=%.3f "
      "all_s=%.3f goal_s=1\n",
      static_cast<long long>(trials), reports.size(), opened - begin, read - opened, all - read,
      all - begin);
}

void Open(const std::filesystem::path& file, std::int64_t trials) {
  const auto open = [&] {
    std::vector<orca::tune::Parameter> parameters;
    for (int i = 0; i < 10; ++i)
      parameters.push_back(orca::tune::Uniform("x" + std::to_string(i), -5, 5));
    return std::make_unique<orca::tune::Study>(
        orca::tune::Space(parameters),
        orca::tune::StudyOptions{.search_alg = "random",
                                 .storage = {.file = file, .resume = true},
                                 .search = {.seed = 1}});
  };
  double best = 0;
  {
    const auto study = open();
    auto trial = study->Ask();
    while (study->size() < trials)
      trial = study->TellAndAsk({{trial->number, trial->point[0]}}).at(0);
    study->Tell(trial->number, trial->point[0]);
    best = study->Best()->value;
  }
  const double begin = Now();
  const auto study = open();
  const double seconds = Now() - begin;
  if (study->size() != trials || study->Best()->value != best) {
    std::fprintf(stderr, "%lld trials came back\n", static_cast<long long>(study->size()));
    std::exit(1);
  }
  std::printf("RESULT study/resume trials=%lld parameters=10 all_s=%.3f goal_s=1\n",
              static_cast<long long>(trials), seconds);
}

}  // namespace

int main() {
  std::string folder = "/tmp/orca-store-bench-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  const std::filesystem::path path = folder;
  Decisions(path / "normal", false, 10'000);
  Decisions(path / "full", true, 200);
  Resume(path / "large", 100'000, 3);
  Open(path / "study", 100'000);
  std::filesystem::remove_all(path);
  return 0;
}
