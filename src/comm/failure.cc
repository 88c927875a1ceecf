#include "comm/failure.h"

#include <algorithm>
#include <thread>

#include "orca/core/deadline.h"

namespace orca::comm {

std::chrono::milliseconds NewsGrace(std::chrono::milliseconds peer_timeout) {
  return std::max(2 * BeatInterval(peer_timeout), std::chrono::milliseconds(200));
}

std::chrono::milliseconds BeatInterval(std::chrono::milliseconds peer_timeout) {
  return std::clamp(peer_timeout / 10, std::chrono::milliseconds(1),
                    std::chrono::milliseconds(500));
}

Failure FirstCause(const Failure& echo, const std::function<std::optional<Failure>()>& known,
                   std::chrono::milliseconds grace) {
  const Deadline deadline = Deadline::After(grace);
  while (!deadline.Passed()) {
    if (auto failure = known()) return *failure;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return echo;
}

}  // namespace orca::comm
