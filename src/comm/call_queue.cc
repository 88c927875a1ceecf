#include "comm/call_queue.h"

#include <fmt/format.h>
#include <pthread.h>

#include <chrono>
#include <optional>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/host.h"

namespace orca::comm {

/// Lets the next call begin when it goes.
class CallQueue::Turn {
 public:
  explicit Turn(CallQueue& queue) : queue_(queue) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() { queue_.EndTurn(); }

 private:
  CallQueue& queue_;
};

CallQueue::CallQueue(std::function<void(const Collective&)> execute,
                     std::function<bool(const Collective&)> ready)
    : execute_(std::move(execute)), ready_(std::move(ready)) {}

CallQueue::~CallQueue() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
}

void CallQueue::Run(const Collective& call) {
  if (!TryTurn(false)) WaitForTurn(false);
  const Turn turn(*this);
  execute_(call);
}

std::shared_ptr<Work::State> CallQueue::Start(Collective call, DoneCallback done) {
  auto state = std::make_shared<Work::State>();
  state->callback = std::move(done);
  if (TryTurn(false)) {
    std::optional<Turn> turn(*this);
    // Callbacks come in the order of the calls.
    if (!ending_.load(std::memory_order_acquire) && ready_(call)) {
      const std::exception_ptr error = Execute(call);
      turn.reset();
      state->Finish(error);
      return state;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable())
      thread_ = StartThread([this](const std::stop_token& stop) { Loop(stop); });
    queue_.push_back({.call = std::move(call), .state = state});
    queued_.fetch_add(1);
  }
  posted_.notify_one();
  return state;
}

std::exception_ptr CallQueue::Execute(const Collective& call) {
  try {
    execute_(call);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

bool CallQueue::TryTurn(bool from_queue) {
  if (!from_queue && queued_.load() != 0) return false;
  return !busy_.load(std::memory_order_relaxed) && !busy_.exchange(true, std::memory_order_acquire);
}

// The end of a turn is a plain store: an atomic operation there would wait for the last flag that
// the collective wrote to reach the other cores, which takes as long as a short collective. So a
// waiter may miss the notice, and looks again.
void CallQueue::WaitForTurn(bool from_queue) {
  std::unique_lock lock(mutex_);
  waiting_.fetch_add(1);
  while (!TryTurn(from_queue)) turn_ended_.wait_for(lock, std::chrono::milliseconds(1));
  waiting_.fetch_sub(1);
}

void CallQueue::EndTurn() {
  busy_.store(false, std::memory_order_release);
  if (waiting_.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(mutex_);
  turn_ended_.notify_all();
}

void CallQueue::Loop(const std::stop_token& stop) {
  ::pthread_setname_np(::pthread_self(), "orca-comm");
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (!posted_.wait(lock, stop, [this] { return !queue_.empty(); })) return;
    }
    if (!TryTurn(true)) WaitForTurn(true);
    Pending next;
    {
      const std::lock_guard lock(mutex_);
      next = std::move(queue_.front());
      queue_.pop_front();
      queued_.fetch_sub(1);
    }
    std::exception_ptr error;
    {
      const Turn turn(*this);
      error = Execute(next.call);
      ending_.store(true, std::memory_order_relaxed);  // seen by whoever has the next turn
    }
    next.state->Finish(error);
    ending_.store(false, std::memory_order_release);
  }
}

}  // namespace orca::comm
