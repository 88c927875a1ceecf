#include "comm/failure.h"

#include <chrono>
#include <thread>

#include "orca/core/deadline.h"

namespace orca::comm {

Failure FirstCause(const Failure& echo, const std::function<std::optional<Failure>()>& known) {
  const Deadline grace = Deadline::After(std::chrono::milliseconds(200));
  while (!grace.Passed()) {
    if (auto failure = known()) return *failure;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return echo;
}

}  // namespace orca::comm
