// Memory that runs out where a test says. A program whose tests use it has its own operator new.
#pragma once

#include <cstdint>
#include <functional>

namespace orca::testing {

/// While it lives, the n-th `new` (from 0) of this thread fails; also all after it, if it `lasts`.
class FailingNew {
 public:
  explicit FailingNew(std::int64_t n, bool lasts = false);
  FailingNew(const FailingNew&) = delete;
  FailingNew& operator=(const FailingNew&) = delete;
  ~FailingNew();
  /// Whether one has failed.
  bool fired() const;
};

/// Calls `body` with the first, the second, ... `new` of it failing, until none of it does. It may
/// end well, or throw an Error or std::bad_alloc; calls `after` each time, with memory. Returns how
/// many allocations there were.
std::int64_t FailEachNew(
    const std::function<void()>& body, const std::function<void()>& after = [] {});

}  // namespace orca::testing
