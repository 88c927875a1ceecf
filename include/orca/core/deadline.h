// A point in monotonic time that a wait may not pass.
#pragma once

#include <algorithm>
#include <chrono>

namespace orca {

/// Made once at the start of an operation and handed down, so that the parts share one limit. Clock
/// jumps do not matter: it counts on the monotonic clock.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline After(std::chrono::milliseconds timeout) {
    return Deadline(Clock::now() + timeout);
  }

  bool Passed() const { return Clock::now() >= at_; }
  /// What is left, never negative.
  std::chrono::milliseconds Left() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(at_ - Clock::now());
    return std::max(left, std::chrono::milliseconds(0));
  }
  Clock::time_point at() const { return at_; }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace orca
