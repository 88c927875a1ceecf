// Trials that train by simulated time, for tests of schedulers.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "orca/tune/scheduler.h"

namespace orca::tune {

/// What a trial has learned.
struct SimulatedState {
  std::int64_t epoch = 0;
  std::vector<double> weights;
};

struct Simulation {
  int workers = 4;
  std::int64_t trials = 16;
  std::int64_t epochs = 81;
  std::function<std::string(std::int64_t trial)> config = [](std::int64_t) { return "{}"; };
  std::vector<double> first_weights;
  /// One epoch: changes the weights, returns the metric.
  std::function<double(std::int64_t trial, const std::string& config, SimulatedState& state)> train;
  /// Seconds of an epoch of a trial.
  std::function<double(std::int64_t trial)> seconds = [](std::int64_t) { return 1.0; };
  /// Sees each report; may end the simulation by returning false.
  std::function<bool(std::int64_t trial, std::int64_t step, double value)> watch;
  /// Made anew from its state before each call, as after a crash.
  std::function<std::unique_ptr<Scheduler>()> renew;
};

struct SimulationResult {
  std::int64_t epochs = 0;                     ///< Trained, over all trials.
  std::map<std::int64_t, std::int64_t> steps;  ///< The last epoch of each trial.
  std::map<std::int64_t, SimulatedState> states;
  std::vector<std::string> policies;
  std::string log;  ///< Every decision, in order.
};

/// Runs a study to its end. Trials of one moment report in the order of their numbers.
inline SimulationResult Simulate(std::unique_ptr<Scheduler> scheduler,
                                 const Simulation& simulation) {
  SimulationResult result;
  std::map<std::int64_t, std::string> configs;
  std::map<std::int64_t, SimulatedState> stored;
  using Event = std::pair<double, std::int64_t>;  // when an epoch ends, trial
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  std::int64_t started = 0;
  const auto renew = [&] {
    if (!simulation.renew) return;
    const std::string state = scheduler->State();
    scheduler = simulation.renew();
    scheduler->Restore(state);
  };
  const auto fill = [&](double now) {
    while (static_cast<int>(events.size()) < simulation.workers) {
      renew();
      const Task task = scheduler->Next(started < simulation.trials);
      if (task.kind == Task::Kind::kWait) return;
      std::int64_t trial = task.trial;
      result.log += "task " + std::to_string(static_cast<int>(task.kind)) + " " +
                    std::to_string(trial) + " " + task.config + "\n";
      if (task.kind == Task::Kind::kStop) {
        EXPECT_EQ(stored.erase(trial), 1U);
        continue;
      }
      if (task.kind == Task::Kind::kStart) {
        trial = started++;
        configs[trial] = task.config.empty() ? simulation.config(trial) : task.config;
        result.states[trial] = {.epoch = 0, .weights = simulation.first_weights};
        scheduler->Start(trial, configs[trial]);
      } else {
        const std::int64_t source = task.source >= 0 ? task.source : trial;
        EXPECT_TRUE(stored.contains(source)) << "no state of " << source;
        result.states[trial] = stored[source];
        if (task.source >= 0) {
          EXPECT_EQ(stored[source].epoch, task.source_step);
        }
        if (!task.config.empty()) configs[trial] = task.config;
        if (!task.policy.empty()) result.policies.push_back(task.policy);
      }
      events.emplace(now + simulation.seconds(trial), trial);
    }
  };
  fill(0);
  while (!events.empty()) {
    const auto [now, trial] = events.top();
    events.pop();
    auto& state = result.states[trial];
    ++state.epoch;
    ++result.epochs;
    const double value = simulation.train(trial, configs[trial], state);
    result.steps[trial] = state.epoch;
    if (simulation.watch && !simulation.watch(trial, state.epoch, value)) return result;
    renew();
    const Decision decision = scheduler->Report(trial, state.epoch, value);
    result.log += std::string(DecisionName(decision)) + " " + std::to_string(trial) + " " +
                  std::to_string(state.epoch) + "\n";
    if (decision == Decision::kSave || decision == Decision::kPause) stored[trial] = state;
    if (state.epoch >= simulation.epochs) {
      scheduler->Finished(trial);
    } else if (decision == Decision::kContinue || decision == Decision::kSave) {
      events.emplace(now + simulation.seconds(trial), trial);
    }
    fill(now);
  }
  return result;
}

}  // namespace orca::tune
