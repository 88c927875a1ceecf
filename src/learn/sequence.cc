// Schedules one after the other.
#include <fmt/format.h>

#include <utility>

#include "learn/schedule_checks.h"
#include "orca/core/error.h"
#include "orca/learn/schedule.h"

namespace orca::learn {

class Sequence final : public Schedule {
 public:
  explicit Sequence(std::vector<ScheduleSpan> parts) : parts_(std::move(parts)) {
    std::int64_t end = 0;
    for (const ScheduleSpan& part : parts_) ends_.push_back(end += part.iterations);
  }

  double Rate(const BaseRate& base, const SchedulePoint& at) override {
    const std::int64_t iteration = at.iteration - at.first_iteration;
    // As in BigDL the iteration that has the number of the end still belongs to the one before.
    while (current_ + 1 < parts_.size() && iteration > ends_[current_]) {
      inherited_ = RateAtEnd(base, at);
      ++current_;
    }
    last_rate_ = RateOfCurrent(base, at);
    last_iteration_ = iteration;
    return last_rate_;
  }

 protected:
  void Append(std::vector<double>& state) const override {
    state.push_back(static_cast<double>(current_));
    state.push_back(inherited_);
    state.push_back(last_rate_);
    state.push_back(static_cast<double>(last_iteration_));
    for (const ScheduleSpan& part : parts_) part.schedule->Append(state);
  }

  void Take(std::span<const double>& state) override {
    if (!(state[0] >= 0 && state[0] < static_cast<double>(parts_.size()))) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("the state is of part {} of a sequence of {}; restore it into the "
                              "sequence that it was saved from",
                              state[0] + 1, parts_.size()));
    }
    current_ = static_cast<std::size_t>(state[0]);
    inherited_ = state[1];
    last_rate_ = state[2];
    last_iteration_ = CountFrom(state[3]);
    state = state.subspan(4);
    for (const ScheduleSpan& part : parts_) part.schedule->Take(state);
  }

 private:
  double RateOfCurrent(const BaseRate& base, SchedulePoint at) const {
    const std::int64_t before = current_ == 0 ? 0 : ends_[current_ - 1];
    const BaseRate own{.rate = current_ == 0 ? base.rate : inherited_, .decay = base.decay};
    at.first_iteration += before;
    return parts_[current_].schedule->Rate(own, at);
  }

  // Calculated when nobody asked there: training that goes on at some iteration has the same rates.
  double RateAtEnd(const BaseRate& base, SchedulePoint at) const {
    if (last_iteration_ == ends_[current_]) return last_rate_;
    at.iteration = at.first_iteration + ends_[current_];
    return RateOfCurrent(base, at);
  }

  std::vector<ScheduleSpan> parts_;
  std::vector<std::int64_t> ends_;  // the last iteration of each part
  std::size_t current_ = 0;
  double inherited_ = 0;
  double last_rate_ = 0;
  std::int64_t last_iteration_ = -1;
};

std::shared_ptr<Schedule> SequentialSchedule(std::vector<ScheduleSpan> parts) {
  if (parts.empty()) {
    throw Error(Code::kInvalidArgument,
                "a sequence of no schedules has no rate; add one or more to it");
  }
  for (const ScheduleSpan& part : parts) {
    if (part.schedule == nullptr)
      throw Error(Code::kInvalidArgument, "a sequence was given a null schedule");
    CheckPositive("a sequence", "max_iteration", part.iterations);
  }
  return std::make_shared<Sequence>(std::move(parts));
}

}  // namespace orca::learn
