// The schedule that waits for a number to stop improving.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "learn/schedule_checks.h"
#include "orca/core/error.h"
#include "orca/learn/schedule.h"

namespace orca::learn {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Plateau final : public Schedule {
 public:
  explicit Plateau(PlateauOptions options)
      : options_(std::move(options)), best_(options_.mode == "min" ? kInfinity : -kInfinity) {}

  double Rate(const BaseRate& base, const SchedulePoint& at) override {
    if (epoch_ == kNotAsked) {
      rate_ = base.rate;
      epoch_ = at.epoch;
    } else if (at.epoch != epoch_) {
      Look(options_.monitor == "Loss" ? at.loss : at.score);
      epoch_ = at.epoch;
    }
    return rate_;
  }

 protected:
  void Append(std::vector<double>& state) const override {
    for (const double value : {rate_, best_, static_cast<double>(epoch_),
                               static_cast<double>(waited_), static_cast<double>(to_cool_)}) {
      state.push_back(value);
    }
  }

  void Take(std::span<const double>& state) override {
    rate_ = state[0];
    best_ = state[1];
    epoch_ = CountFrom(state[2]);
    waited_ = CountFrom(state[3]);
    to_cool_ = CountFrom(state[4]);
    state = state.subspan(5);
  }

 private:
  static constexpr std::int64_t kNotAsked = 0;  // epochs begin at 1

  bool IsBetter(double value) const {
    return options_.mode == "min" ? value < best_ - options_.epsilon
                                  : value > best_ + options_.epsilon;
  }

  void Look(double value) {
    if (std::isnan(value)) {
      throw Error(
          Code::kFailedPrecondition,
          fmt::format("Plateau watches the {0}, which has no value after epoch {1}; "
                      "validate every epoch, or watch the {2}",
                      options_.monitor, epoch_, options_.monitor == "Loss" ? "score" : "Loss"));
    }
    if (to_cool_ > 0) {
      --to_cool_;
      waited_ = 0;
    }
    if (IsBetter(value)) {
      best_ = value;
      waited_ = 0;
    } else if (to_cool_ == 0) {
      if (waited_ >= options_.patience) Reduce();
      ++waited_;
    }
  }

  void Reduce() {
    // So close to the minimum there is nothing to reduce.
    if (rate_ <= options_.min_rate * (1 + 1e-4)) return;
    rate_ = std::max(rate_ * options_.factor, options_.min_rate);
    to_cool_ = options_.cooldown;
    waited_ = 0;
  }

  PlateauOptions options_;
  double rate_ = 0;
  double best_;
  std::int64_t epoch_ = kNotAsked;
  std::int64_t waited_ = 0;   // epochs without improvement
  std::int64_t to_cool_ = 0;  // epochs that do not count
};

}  // namespace

std::shared_ptr<Schedule> PlateauSchedule(PlateauOptions options) {
  if (options.monitor != "Loss" && options.monitor != "score") {
    throw Error(
        Code::kInvalidArgument,
        fmt::format("Plateau cannot watch \"{}\"; give \"Loss\" or \"score\"", options.monitor));
  }
  if (options.mode != "min" && options.mode != "max") {
    throw Error(Code::kInvalidArgument, fmt::format("mode \"{}\" of Plateau is unknown; give "
                                                    "\"min\" or \"max\"",
                                                    options.mode));
  }
  if (!(options.factor < 1)) {
    throw Error(Code::kInvalidArgument,
                fmt::format("factor {} of Plateau does not reduce the learning rate; give less "
                            "than 1",
                            options.factor));
  }
  CheckNotNegative("Plateau", "patience", options.patience);
  CheckNotNegative("Plateau", "cooldown", options.cooldown);
  CheckFinite("Plateau", "factor", options.factor);
  CheckFinite("Plateau", "epsilon", options.epsilon);
  CheckFinite("Plateau", "min_rate", options.min_rate);
  return std::make_shared<Plateau>(std::move(options));
}

}  // namespace orca::learn
