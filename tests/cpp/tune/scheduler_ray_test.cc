// The decisions of Ray Tune's own schedulers, recorded by data/ray_traces.py.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "orca/tune/scheduler.h"
#include "tune/schedulers/rungs.h"

namespace orca::tune {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// As Walk of ray_traces.py.
class Walk {
 public:
  struct Report {
    std::int64_t trial;
    std::int64_t step;
    double value;
    bool ends;
  };

  Walk(std::uint64_t seed, std::int64_t max_t, double nan = kNan)
      : state_(seed), max_t_(max_t), nan_(nan) {
    steps_.resize(3 + Draw(18));
    for (std::size_t i = 0; i < steps_.size(); ++i) live_.push_back(static_cast<std::int64_t>(i));
  }
  std::int64_t trials() const { return static_cast<std::int64_t>(steps_.size()); }
  Report Next() {
    const std::int64_t trial = live_[Draw(live_.size())];
    std::int64_t& step = steps_[static_cast<std::size_t>(trial)];
    const bool jumps = Draw(4) == 0;
    step += 1 + (jumps ? static_cast<std::int64_t>(Draw(7)) : 0);
    const bool is_nan = Draw(40) == 0;
    const double value = is_nan ? nan_ : static_cast<double>(Draw(1024)) / 64 - 8;
    const bool ends = Draw(40) == 0 && step < max_t_;
    return {trial, step, value, ends};
  }
  void Remove(std::int64_t trial) { std::erase(live_, trial); }

 private:
  std::uint64_t Draw(std::uint64_t size) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return (state_ >> 33U) % size;
  }

  std::uint64_t state_;
  std::int64_t max_t_;
  double nan_;
  std::vector<std::int64_t> steps_;
  std::vector<std::int64_t> live_;
};

struct Trace {
  std::string kind;
  std::int64_t first, second, third, fourth;
  std::string mode;
  std::uint64_t seed;
  std::string decisions;
};

std::vector<Trace> Traces(const std::string& kind) {
  std::ifstream file(ORCA_TEST_DATA "/tune/data/ray_traces.txt");
  std::vector<Trace> traces;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    Trace trace;
    words >> trace.kind >> trace.first >> trace.second >> trace.third >> trace.fourth >>
        trace.mode >> trace.seed >> trace.decisions;
    if (trace.kind == kind) traces.push_back(trace);
  }
  return traces;
}

/// Asks `report` for every report of the trace; `end` hears of trials that ended by themselves.
template <typename ReportFn, typename EndFn>
void Replay(const Trace& trace, Walk walk, ReportFn report, EndFn end) {
  std::string made;
  for (const char expected : trace.decisions) {
    const auto next = walk.Next();
    bool stops = report(next);
    if (next.ends) end(next.trial);
    made += next.ends ? 'e' : (stops ? 's' : 'c');
    ASSERT_EQ(made.back(), expected) << trace.kind << " with seed " << trace.seed << ", report "
                                     << made.size() << " of " << trace.decisions;
    if (expected != 'c') walk.Remove(next.trial);
  }
}

TEST(SchedulerRayTest, RungsStopWhatRayStopsOnAThousandTraces) {
  const auto traces = Traces("asha");
  ASSERT_EQ(traces.size(), 1000U);
  for (const auto& trace : traces) {
    const std::int64_t max_t = trace.second;
    std::vector<Rungs> brackets;
    for (int s = 0; s < trace.fourth; ++s)
      brackets.emplace_back(static_cast<double>(trace.first), static_cast<double>(max_t),
                            static_cast<double>(trace.third), s);
    Replay(
        trace, Walk(trace.seed, max_t),
        [&](const Walk::Report& report) {
          if (report.step >= max_t) return true;
          const double score = trace.mode == "max" ? report.value : -report.value;
          return brackets[static_cast<std::size_t>(report.trial % trace.fourth)].Stops(
              report.trial, report.step, score);
        },
        [](std::int64_t) {});
    if (HasFatalFailure()) return;
  }
}

/// Also with a scheduler that is made anew from its state before every report.
void ReplayByName(const Trace& trace, const std::string& name, const std::string& parameters,
                  const Walk& walk) {
  const SchedulerOptions options{.maximize = trace.mode == "max"};
  for (const bool restores : {false, true}) {
    if (restores && trace.seed % 10 != 0) continue;
    auto scheduler = MakeScheduler(name, parameters, options);
    for (std::int64_t trial = 0; trial < walk.trials(); ++trial) {
      EXPECT_EQ(scheduler->Next(true).kind, Task::Kind::kStart);
      scheduler->Start(trial, "{}");
    }
    EXPECT_EQ(scheduler->Next(false).kind, Task::Kind::kWait);
    Replay(
        trace, walk,
        [&](const Walk::Report& report) {
          if (restores) {
            const std::string state = scheduler->State();
            scheduler = MakeScheduler(name, parameters, options);
            scheduler->Restore(state);
            EXPECT_EQ(scheduler->State(), state);
          }
          return scheduler->Report(report.trial, report.step, report.value) == Decision::kStop;
        },
        [&](std::int64_t trial) { scheduler->Finished(trial); });
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(SchedulerRayTest, AsyncHyperBandByNameDecidesAsRay) {
  int replayed = 0;
  for (const auto& trace : Traces("asha")) {
    if (trace.fourth != 1) continue;
    std::ostringstream parameters;
    parameters << R"({"grace_period": )" << trace.first << R"(, "max_t": )" << trace.second
               << R"(, "reduction_factor": )" << trace.third << "}";
    ReplayByName(trace, "AsyncHyperBand", parameters.str(), Walk(trace.seed, trace.second));
    if (HasFatalFailure()) return;
    ++replayed;
  }
  EXPECT_GT(replayed, 300);
}

TEST(SchedulerRayTest, MedianStoppingDecidesAsRay) {
  const auto traces = Traces("median");
  ASSERT_EQ(traces.size(), 300U);
  for (const auto& trace : traces) {
    std::ostringstream parameters;
    parameters << R"({"grace_period": )" << trace.first << R"(, "min_samples_required": )"
               << trace.second << "}";
    ReplayByName(trace, "median_stopping_rule", parameters.str(),
                 Walk(trace.seed, 1'000'000'000, 0));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace orca::tune
