// One collective at a time, in the order in which they were asked for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/work.h"
#include "orca/comm/communicator.h"

namespace orca::comm {

/// Runs blocking calls on the caller's thread and asynchronous ones on a thread of its own, which
/// it starts when the first one comes. An asynchronous call that would not have to wait runs on the
/// caller's thread, too: two changes of threads take longer than a short collective. Any thread may
/// use it.
class CallQueue {
 public:
  /// `execute` does the work; it has a deadline of its own, so every wait here ends. `ready` says
  /// whether a call would be short and wait for nobody; it is asked when no call is under way.
  CallQueue(std::function<void(const Collective&)> execute,
            std::function<bool(const Collective&)> ready);
  /// Lets queued calls run out: the group must have been aborted, so that they fail at once.
  ~CallQueue();

  /// Runs `call` here, after all that were started.
  void Run(const Collective& call);
  /// Queues `call`, or runs it if that is quicker, and returns.
  std::shared_ptr<Work::State> Start(Collective call, DoneCallback done);
  /// Whether no call is queued or running.
  bool idle() const { return queued_.load() == 0 && !busy_.load(); }

 private:
  struct Pending {
    Collective call;
    std::shared_ptr<Work::State> state;
  };
  class Turn;

  std::exception_ptr Execute(const Collective& call);
  bool TryTurn(bool from_queue);
  void WaitForTurn(bool from_queue);
  void EndTurn();
  void Loop(const std::stop_token& stop);

  std::function<void(const Collective&)> execute_;
  std::function<bool(const Collective&)> ready_;
  std::atomic<bool> busy_{false};    // a call is running
  std::atomic<bool> ending_{false};  // the thread's last call is done, its callback is not
  std::atomic<int> queued_{0};       // calls started and not yet running
  std::atomic<int> waiting_{0};      // threads that wait for their turn

  std::mutex mutex_;  // guards all below
  std::condition_variable turn_ended_;
  std::condition_variable_any posted_;
  std::deque<Pending> queue_;
  std::jthread thread_;
};

}  // namespace orca::comm
