// Why a group ended.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "orca/core/error.h"

namespace orca::comm {

/// The first thing that went wrong; every rank of the group throws it.
struct Failure {
  Code code = Code::kAborted;
  std::string text;
};

/// A link that breaks is usually an echo of something that another rank knows better: gives the
/// news `grace` to arrive through `known`, and returns it instead of `echo`.
Failure FirstCause(const Failure& echo, const std::function<std::optional<Failure>()>& known,
                   std::chrono::milliseconds grace);
/// How long news may take. Mostly rank 0 passes them on at once; but if rank 0 fell silent, every
/// rank has to notice by itself, some a beat later than others.
std::chrono::milliseconds NewsGrace(std::chrono::milliseconds peer_timeout);
/// How often a rank gives a sign of life, if silence for `peer_timeout` means that it is lost.
std::chrono::milliseconds BeatInterval(std::chrono::milliseconds peer_timeout);

/// Time that is added up by one thread and read by any.
class SleepTime {
 public:
  void operator+=(std::chrono::nanoseconds more) {
    total_.store(total_.load(std::memory_order_relaxed) + more.count(), std::memory_order_relaxed);
  }
  std::chrono::nanoseconds load() const {
    return std::chrono::nanoseconds(total_.load(std::memory_order_relaxed));
  }

 private:
  std::atomic<std::int64_t> total_ = 0;
};

/// Is told of a long wait; see CommOptions::on_long_wait.
using LongWaitReport =
    std::function<void(const std::string& text, std::chrono::milliseconds waited)>;

/// How long a wait lasts before it is reported for the (`warnings` + 1)st time.
inline std::chrono::milliseconds NextWarning(std::chrono::milliseconds warn_after, int warnings) {
  return warnings == 0 ? warn_after : warn_after * 6 * warnings;
}

}  // namespace orca::comm
