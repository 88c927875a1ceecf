// What every schedule asks of its arguments.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string_view>

#include "orca/core/error.h"

namespace orca::learn {

inline void CheckPositive(std::string_view schedule, std::string_view name, std::int64_t value) {
  if (value > 0) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("{} {} of {} is not positive; give 1 or more", name, value, schedule));
}

inline void CheckNotNegative(std::string_view schedule, std::string_view name, std::int64_t value) {
  if (value >= 0) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("{} {} of {} is negative; give 0 or more", name, value, schedule));
}

inline void CheckFinite(std::string_view schedule, std::string_view name, double value) {
  if (std::isfinite(value)) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("{} {} of {} is not a finite number", name, value, schedule));
}

/// A counter as State() keeps it. -1 is one that has not begun.
inline std::int64_t CountFrom(double saved) {
  constexpr double kLargest = 1LL << 53;  // a double holds every whole number up to here
  if (saved >= -1 && saved <= kLargest) return static_cast<std::int64_t>(saved);
  throw Error(Code::kInvalidArgument,
              fmt::format("the state holds {} where a count must be; it is not of this schedule, "
                          "or damaged",
                          saved));
}

}  // namespace orca::learn
