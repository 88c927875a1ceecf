// The time of a scheduler's decision, with 10,000 trials behind it. The goal is 20 us. Behind it
// the time of a report to a study with that scheduler, with all of its decisions in a file.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "harness.h"
#include "orca/tune/scheduler.h"
#include "orca/tune/study.h"

namespace {

using orca::tune::Decision;
using orca::tune::Task;

constexpr std::int64_t kTrials = 10'000;
constexpr std::int64_t kEpochs = 10;

/// All trials train side by side; returns seconds of each report with the Next() behind it, of the
/// last half: then all the trials are known.
std::vector<double> Decide(const std::string& name, const std::string& parameters) {
  const auto scheduler = orca::tune::MakeScheduler(name, parameters, {.maximize = true});
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<std::int64_t> steps(kTrials);
  std::vector<std::int64_t> live;
  std::vector<double> times;
  std::int64_t started = 0;
  const auto take = [&] {
    const Task task = scheduler->Next(started < kTrials);
    if (task.kind == Task::Kind::kStart) {
      scheduler->Start(started, "{\"x\": 1}");
      live.push_back(started++);
    } else if (task.kind == Task::Kind::kResume) {
      if (task.source >= 0) steps[static_cast<std::size_t>(task.trial)] = task.source_step;
      live.push_back(task.trial);
    }
    return task.kind != Task::Kind::kWait;
  };
  while (started < kTrials) take();
  while (!live.empty()) {
    const std::size_t at =
        static_cast<std::size_t>(uniform(random) * static_cast<double>(live.size()));
    const std::int64_t trial = live[at];
    const std::int64_t step = ++steps[static_cast<std::size_t>(trial)];
    const double begin = orca::bench::Now();
    const Decision decision = scheduler->Report(trial, step, uniform(random));
    const bool ends = step >= kEpochs;
    if (ends) scheduler->Finished(trial);
    const bool leaves = ends || decision == Decision::kStop || decision == Decision::kPause;
    if (leaves) {
      live[at] = live.back();
      live.pop_back();
      while (live.size() < 64 && take()) {
      }
    }
    times.push_back(orca::bench::Now() - begin);
  }
  times.erase(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  return times;
}

/// Seconds of a report in a stored study, with all that it brings about, when there are 10,000
/// trials; 64 run side by side.
double StudyReports(const std::string& name, const std::string& parameters) {
  std::string folder = "/tmp/orca-scheduler-bench-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) std::exit(1);
  std::vector<double> times;
  {
    orca::tune::Study study(orca::tune::Space({orca::tune::Uniform("x", 0, 1)}),
                            {.mode = orca::tune::Mode::kMax,
                             .search_alg = "random",
                             .scheduler = name,
                             .scheduler_parameters = parameters,
                             .scheduling = {.epochs = kEpochs},
                             .storage = {.file = folder + "/study.db"}});
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> uniform(0, 1);
    struct Live {
      std::int64_t trial;
      std::int64_t step;
    };
    std::vector<Live> live;
    while (study.size() < kTrials) {
      const double begin = orca::bench::Now();
      while (live.size() < 64 && study.CanAsk()) {
        const auto trial = study.Ask();
        live.push_back({trial->number, trial->resumed_step});
      }
      const auto at = static_cast<std::size_t>(uniform(random) * static_cast<double>(live.size()));
      Live& one = live[at];
      const double value = uniform(random);
      const Decision decision = study.AddReport(one.trial, ++one.step, value);
      const bool stays = decision == Decision::kContinue || decision == Decision::kSave;
      if (stays && one.step >= kEpochs) study.Tell(one.trial, value);
      if (!stays || one.step >= kEpochs) {
        live[at] = live.back();
        live.pop_back();
      }
      times.push_back(orca::bench::Now() - begin);
    }
  }
  std::filesystem::remove_all(folder);
  times.erase(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() * 9 / 10));
  double sum = 0;
  for (const double time : times) sum += time;
  return sum / static_cast<double>(times.size());
}

}  // namespace

int main() {
  const std::vector<std::pair<std::string, std::string>> schedulers{
      {"fifo", "{}"},
      {"async_hyperband", R"({"max_t": 10, "reduction_factor": 2})"},
      {"async_hyperband", R"({"max_t": 10, "reduction_factor": 2, "form": "promotion"})"},
      {"hyperband", R"({"max_t": 9})"},
      {"hb_bohb", R"({"max_t": 9})"},
      {"median_stopping_rule", R"({"grace_period": 1})"},
      {"pbt", R"({"perturbation_interval": 1, "hyperparam_mutations": {"x": [1, 2, 3]}})"}};
  for (const auto& [name, parameters] : schedulers) {
    const auto times = Decide(name, parameters);
    double sum = 0;
    for (const double time : times) sum += time;
    const std::string full_name =
        name + (parameters.find("promotion") != std::string::npos ? "/promotion" : "");
    std::printf("RESULT scheduler/%s decisions=%zu mean_us=%.2f median_us=%.2f goal_us=20\n",
                full_name.c_str(), times.size(), sum / static_cast<double>(times.size()) * 1e6,
                orca::bench::Median(times) * 1e6);
    // PBT stores the state of its population with every decision: 10,000 are not what it is for.
    if (name != "pbt")
      std::printf("RESULT study-report/%s mean_us=%.1f\n", full_name.c_str(),
                  StudyReports(name, parameters) * 1e6);
    std::fflush(stdout);
  }
  return 0;
}
