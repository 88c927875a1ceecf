// One thread that waits for descriptors and times, and calls who asked for them.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "orca/core/deadline.h"
#include "orca/core/unique_fd.h"

namespace orca::runtime {

/// What the agent, the driver's controller and a worker's second thread turn in.
///
/// Everything is called on the thread that is in Run or RunUntil, one at a time. Post, Stop and
/// stopped may be called by any thread.
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
  /// Returns after Stop, at the deadline, or when `done` says so; that is asked after each turn.
  void RunUntil(const std::function<bool()>& done, const Deadline& deadline);
  void Stop();
  bool stopped() const;

 private:
  struct Watched {
    std::function<short()> wants;
    std::function<void(short)> ready;
    std::uint64_t id = 0;
  };

  void Turn(std::chrono::milliseconds longest);
  void RunPosted();
  void RunTimers();

  UniqueFd wake_;
  std::map<int, Watched> watched_;
  std::function<void(std::vector<pollfd>&)> append_;
  std::function<void()> handle_;
  std::uint64_t next_id_ = 1;
  std::multimap<Clock::time_point, std::function<void()>> timers_;
  mutable std::mutex mutex_;  // guards posted_ and stopped_
  std::vector<std::function<void()>> posted_;
  bool stopped_ = false;
};

/// Runs a loop on a thread of its own. Whoever waits for what the loop brings may run it meanwhile,
/// so that news need not wake two threads, one after the other.
class LoopThread {
 public:
  /// `name` shows in /proc; `failed` is called when the loop throws, on whichever thread.
  LoopThread(Loop& loop, std::string name, std::function<void(const std::exception&)> failed);
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;
  ~LoopThread();

  /// Runs the loop here until `done` or the deadline; returns false at once when the loop has
  /// ended, and in a forked child. While another caller is at it this one waits at `turn`: for its
  /// turn, or for who makes `done` true and calls Wake.
  bool RunUntil(const std::function<bool()>& done, const Deadline& deadline,
                std::condition_variable& turn);
  /// Has those who wait at `turn` ask again whether they are done.
  void Wake(std::condition_variable& turn);
  /// An answer is on its way, and who asked for it does not run the loop: the thread does.
  void Serve();
  /// Waits until nobody runs the loop any more: call Loop::Stop before. The loop may go then.
  void Join();

 private:
  void Live();
  void Turn(const std::function<bool()>& done, const Deadline& deadline);
  void PassOn();

  Loop& loop_;
  const std::string name_;
  const std::function<void(const std::exception&)> failed_;
  const std::uint64_t forks_;
  std::mutex running_;  // held by whoever runs the loop
  std::atomic<bool> thread_runs_ = false;
  std::mutex mutex_;  // guards what follows
  std::condition_variable returned_;
  bool lent_ = false;
  bool sleeps_ = false;  // the thread, until it is told that the loop was returned
  bool ended_ = false;
  Loop::Clock::time_point lent_at_;
  std::list<std::condition_variable*> waiting_;  // callers, the next one first
  std::jthread thread_;
};

}  // namespace orca::runtime
