// One thread that waits for descriptors and times, and calls who asked for them.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "orca/core/deadline.h"
#include "orca/core/unique_fd.h"

namespace orca::runtime {

/// What the agent, the driver's controller and a worker's second thread turn in.
///
/// Everything is called on the thread that is in Run. Post and Stop may be called by any thread.
class Loop {
 public:
  using Clock = Deadline::Clock;

  Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Calls `ready` with what poll(2) found for `fd`; `wants` says before each turn what to look for
  /// (0: nothing now).
  void Watch(int fd, std::function<short()> wants, std::function<void(short)> ready);
  /// As above, for input only.
  void Watch(int fd, std::function<void()> readable);
  void Forget(int fd);
  /// For what has descriptors of its own that come and go: `append` adds them before each turn,
  /// `handle` is called after it.
  void Include(std::function<void(std::vector<pollfd>&)> append, std::function<void()> handle);
  /// Calls `call` once, at or soon after `when`.
  void At(Clock::time_point when, std::function<void()> call);
  /// Calls `call` in the next turn. Any thread.
  void Post(std::function<void()> call);

  /// Returns after Stop.
  void Run();
  void Stop();

 private:
  struct Watched {
    std::function<short()> wants;
    std::function<void(short)> ready;
    std::uint64_t id = 0;
  };

  void Turn();
  void RunPosted();
  void RunTimers();

  UniqueFd wake_;
  std::map<int, Watched> watched_;
  std::function<void(std::vector<pollfd>&)> append_;
  std::function<void()> handle_;
  std::uint64_t next_id_ = 1;
  std::multimap<Clock::time_point, std::function<void()>> timers_;
  std::mutex mutex_;  // guards posted_ and stopped_
  std::vector<std::function<void()>> posted_;
  bool stopped_ = false;
};

}  // namespace orca::runtime
