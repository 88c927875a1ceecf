#include "bind_learn_schedules.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "orca/learn/schedule.h"
#include "orca/learn/trigger.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace orca::bindings {
namespace {

using learn::Schedule;
using learn::Trigger;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

std::shared_ptr<Schedule> Sequential(
    const std::vector<std::tuple<std::shared_ptr<Schedule>, std::int64_t>>& parts) {
  std::vector<learn::ScheduleSpan> spans;
  for (const auto& [schedule, iterations] : parts) spans.push_back({schedule, iterations});
  return learn::SequentialSchedule(std::move(spans));
}

void BindTrigger(nb::module_& m) {
  nb::class_<Trigger>(m, "Trigger")
      .def_static("max_epoch", &learn::MaxEpoch, "epochs"_a)
      .def_static("max_iteration", &learn::MaxIteration, "iterations"_a)
      .def_static("every_epoch", &learn::EveryEpoch)
      .def_static("several_iteration", &learn::SeveralIteration, "interval"_a)
      .def_static("max_score", &learn::MaxScore, "score"_a)
      .def_static("min_loss", &learn::MinLoss, "loss"_a)
      .def_static("all_of", &learn::And, "triggers"_a)
      .def_static("any_of", &learn::Or, "triggers"_a)
      .def(
          "fires",
          [](Trigger& self, std::int64_t epoch, std::int64_t iteration, double loss, double score) {
            return self.Fires(
                {.epoch = epoch, .iteration = iteration, .loss = loss, .score = score});
          },
          "epoch"_a, "iteration"_a, "loss"_a = kUnknown, "score"_a = kUnknown);
}

void BindSchedule(nb::module_& m) {
  nb::class_<Schedule>(m, "Schedule")
      .def_static("default", &learn::DefaultSchedule)
      .def_static("poly", &learn::PolySchedule, "power"_a, "max_iteration"_a)
      .def_static("exponential", &learn::ExponentialSchedule, "decay_step"_a, "decay_rate"_a,
                  "staircase"_a)
      .def_static("step", &learn::StepSchedule, "step_size"_a, "gamma"_a)
      .def_static("multi_step", &learn::MultiStepSchedule, "step_sizes"_a, "gamma"_a)
      .def_static("warmup", &learn::WarmupSchedule, "delta"_a)
      .def_static(
          "plateau",
          [](std::string monitor, double factor, std::int64_t patience, std::string mode,
             double epsilon, std::int64_t cooldown, double min_rate) {
            return learn::PlateauSchedule({.monitor = std::move(monitor),
                                           .factor = factor,
                                           .patience = patience,
                                           .mode = std::move(mode),
                                           .epsilon = epsilon,
                                           .cooldown = cooldown,
                                           .min_rate = min_rate});
          },
          "monitor"_a, "factor"_a, "patience"_a, "mode"_a, "epsilon"_a, "cooldown"_a, "min_rate"_a)
      .def_static("sequential", &Sequential, "parts"_a)
      .def(
          "rate",
          [](Schedule& self, double base_rate, double decay, std::int64_t iteration,
             std::int64_t epoch, double loss, double score) {
            return self.Rate(
                {.rate = base_rate, .decay = decay},
                {.iteration = iteration, .epoch = epoch, .loss = loss, .score = score});
          },
          "base_rate"_a, "decay"_a, "iteration"_a, "epoch"_a = 1, "loss"_a = kUnknown,
          "score"_a = kUnknown)
      .def("state", &Schedule::State)
      .def(
          "restore", [](Schedule& self, const std::vector<double>& state) { self.Restore(state); },
          "state"_a);
}

}  // namespace

void BindSchedules(nb::module_& m) {
  BindTrigger(m);
  BindSchedule(m);
}

}  // namespace orca::bindings
