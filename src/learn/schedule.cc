#include "orca/learn/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>
#include <utility>

#include "learn/schedule_checks.h"
#include "orca/core/error.h"

namespace orca::learn {
namespace {

/// A schedule that remembers nothing. It is asked with the iterations since it began.
class Formula final : public Schedule {
 public:
  using Function = std::function<double(const BaseRate& base, std::int64_t iteration)>;

  explicit Formula(Function function) : function_(std::move(function)) {}

  double Rate(const BaseRate& base, const SchedulePoint& at) override {
    return function_(base, at.iteration - at.first_iteration);
  }

 private:
  Function function_;
};

class Poly final : public Schedule {
 public:
  Poly(double power, std::int64_t max_iteration) : power_(power), max_iteration_(max_iteration) {}

  double Rate(const BaseRate& base, const SchedulePoint& at) override {
    if (at.iteration > max_iteration_) return 0;
    const double done = static_cast<double>(at.iteration) / static_cast<double>(max_iteration_);
    return base.rate * std::pow(1 - done, power_);
  }

 private:
  double power_;
  std::int64_t max_iteration_;
};

std::shared_ptr<Schedule> Make(Formula::Function function) {
  return std::make_shared<Formula>(std::move(function));
}

}  // namespace

std::vector<double> Schedule::State() const {
  std::vector<double> state;
  Append(state);
  return state;
}

void Schedule::Restore(std::span<const double> state) {
  const std::size_t expected = State().size();
  if (state.size() != expected) {
    throw Error(Code::kInvalidArgument,
                fmt::format("a state of {} numbers is not of this schedule, which has {}; restore "
                            "it into a schedule of the same kind",
                            state.size(), expected));
  }
  Take(state);
}

void Schedule::Append(std::vector<double>& /*state*/) const {}
void Schedule::Take(std::span<const double>& /*state*/) {}

std::shared_ptr<Schedule> DefaultSchedule() {
  return Make([](const BaseRate& base, std::int64_t iteration) {
    return base.rate / (1 + static_cast<double>(iteration) * base.decay);
  });
}

std::shared_ptr<Schedule> PolySchedule(double power, std::int64_t max_iteration) {
  CheckFinite("Poly", "power", power);
  CheckPositive("Poly", "max_iteration", max_iteration);
  return std::make_shared<Poly>(power, max_iteration);
}

std::shared_ptr<Schedule> ExponentialSchedule(std::int64_t decay_step, double decay_rate,
                                              bool staircase) {
  CheckPositive("Exponential", "decay_step", decay_step);
  CheckFinite("Exponential", "decay_rate", decay_rate);
  return Make([=](const BaseRate& base, std::int64_t iteration) {
    const double steps = static_cast<double>(iteration) / static_cast<double>(decay_step);
    return base.rate * std::pow(decay_rate, staircase ? std::floor(steps) : steps);
  });
}

std::shared_ptr<Schedule> StepSchedule(std::int64_t step_size, double gamma) {
  CheckPositive("Step", "step_size", step_size);
  CheckFinite("Step", "gamma", gamma);
  return Make([=](const BaseRate& base, std::int64_t iteration) {
    const std::int64_t steps = iteration / step_size;
    return base.rate * std::pow(gamma, static_cast<double>(steps));
  });
}

std::shared_ptr<Schedule> MultiStepSchedule(std::vector<std::int64_t> step_sizes, double gamma) {
  CheckFinite("MultiStep", "gamma", gamma);
  if (!std::is_sorted(step_sizes.begin(), step_sizes.end())) {
    throw Error(Code::kInvalidArgument,
                fmt::format("the step_sizes {} of MultiStep do not ascend; give iterations in "
                            "their order",
                            fmt::join(step_sizes, ", ")));
  }
  return Make([steps = std::move(step_sizes), gamma](const BaseRate& base, std::int64_t iteration) {
    const auto reached = std::upper_bound(steps.begin(), steps.end(), iteration) - steps.begin();
    return base.rate * std::pow(gamma, static_cast<double>(reached));
  });
}

std::shared_ptr<Schedule> WarmupSchedule(double delta) {
  CheckFinite("Warmup", "delta", delta);
  return Make([delta](const BaseRate& base, std::int64_t iteration) {
    return base.rate + delta * static_cast<double>(iteration);
  });
}

}  // namespace orca::learn
