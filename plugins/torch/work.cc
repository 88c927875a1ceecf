#include "work.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <Python.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

namespace orca::plugin {
namespace {

thread_local bool completes_futures = false;  // A thread of FutureThreads.
std::atomic<bool> futures_given_up{false};    // WaitForFutures has waited long enough.

/// Threads that complete futures which Python code waits for.
///
/// What is chained to a future may itself wait for a collective (PowerSGD does), so neither the
/// engine's thread nor a single one of ours may run it: whenever no thread is idle, a new one
/// starts. They live as long as the process.
class FutureThreads {
 public:
  void Run(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (tasks_.size() > idle_) {
      std::thread([this] { Loop(); }).detach();
    } else {
      wake_.notify_one();
    }
  }

  /// Whether all tasks were done within `patience`.
  bool Rest(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    return rest_.wait_for(lock, patience, [this] { return tasks_.empty() && busy_ == 0; });
  }

 private:
  void Loop() {
    pthread_setname_np(pthread_self(), "orca-futures");
    completes_futures = true;
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      wake_.wait(lock, [this] { return !tasks_.empty(); });
      --idle_;
      ++busy_;
      {
        const std::function<void()> task = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        task();
      }
      lock.lock();
      if (--busy_ == 0) rest_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable rest_;
  std::deque<std::function<void()>> tasks_;  // Guarded by mutex_, as are the counters.
  std::size_t idle_ = 0;
  std::size_t busy_ = 0;
};

thread_local bool in_engine_callback = false;
std::atomic<pthread_t> ending_thread{0};  // The thread that ends the interpreter, once it does.

bool InterpreterEnds() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

}  // namespace

bool InEngineCallback() { return in_engine_callback; }

void WaitForFutures() {
  constexpr std::chrono::seconds kPatience(5);
  if (!PerProcess<FutureThreads>().Rest(kPatience)) {
    futures_given_up.store(true);
    TORCH_WARN("orca: what is chained to a future still runs while the interpreter ends");
  }
}

void MarkProcessEnding() { ending_thread.store(pthread_self()); }

void StayIfProcessEnds() {
  const pthread_t ending = ending_thread.load();
  if (ending == 0 || ending == pthread_self()) return;
  if (completes_futures && !futures_given_up.load()) return;  // WaitForFutures waits for them.
  // A later atexit function may wait for this thread, so without an end it goes on at last.
  constexpr std::chrono::seconds kPatience(10);
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while (InterpreterEnds() || std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void NoteError(GroupState& group, const OrcaError& error) {
  switch (static_cast<Code>(error.code)) {
    case Code::kInvalidArgument:  // The group is as good as before.
      return;
    case Code::kTimeout:
      return group.error.store(static_cast<int>(c10d::ErrorType::TIMEOUT));
    case Code::kPeerLost:
      return group.error.store(static_cast<int>(c10d::ErrorType::REMOTE_ERROR));
    default:
      return group.error.store(static_cast<int>(c10d::ErrorType::COMM_ERROR));
  }
}

void Rest::Copy() {
  if (copies.empty()) return;
  // As every backend writes its outputs: autograd does not see it.
  const at::AutoDispatchBelowADInplaceOrView guard;
  for (auto& [to, from] : copies) to.copy_(from);
  copies.clear();
}

OrcaWork::OrcaWork(c10d::OpType type, const char* name, std::uint64_t sequence,
                   std::vector<at::Tensor> outputs, Rest rest, std::shared_ptr<GroupState> group,
                   const char* profile)
    : Work(-1, type, profile),
      name_(name),
      sequence_(sequence),
      outputs_(std::move(outputs)),
      rest_(std::move(rest)),
      group_(std::move(group)) {}

void OrcaWork::CountAsPending() {
  counted_ = true;
  group_->pending.fetch_add(1);
}

void OrcaWork::Uncount() {
  if (std::exchange(counted_, false)) group_->pending.fetch_sub(1);
}

void* OrcaWork::ExpectDone() {
  ExpectPart();
  return c10::intrusive_ptr<OrcaWork>::reclaim_copy(this).release();
}

void OrcaWork::Forget(void* context) {
  const auto self = c10::intrusive_ptr<OrcaWork>::reclaim(static_cast<OrcaWork*>(context));
  parts_.fetch_sub(1, std::memory_order_relaxed);
}

void OrcaWork::Fail(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!exception_) exception_ = std::move(error);
}

void OrcaWork::Join(c10::intrusive_ptr<OrcaWork> whole) {
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    if (!completed_) {
      whole_ = std::move(whole);
      return;
    }
    error = exception_;
  }
  whole->PartEnded(error, -1);
}

void OrcaWork::OnDone(void* context, const OrcaError* error, std::int32_t source) {
  const bool nested = std::exchange(in_engine_callback, true);
  try {
    const auto self = c10::intrusive_ptr<OrcaWork>::reclaim(static_cast<OrcaWork*>(context));
    std::exception_ptr thrown;
    if (error != nullptr) {
      NoteError(*self->group_, *error);
      thrown = MakeError(*error, self->name_);
    }
    self->PartEnded(std::move(thrown), source);
  } catch (const std::exception& e) {  // The border to the engine, which is C.
    TORCH_WARN("orca: what was chained to a future threw: ", e.what());
  }
  in_engine_callback = nested;
}

void OrcaWork::PartEnded(std::exception_ptr error, int source) {
  if (error) Fail(std::move(error));
  if (source >= 0) {
    const std::lock_guard lock(mutex_);
    source_ = source;
  }
  if (parts_.fetch_sub(1, std::memory_order_acq_rel) == 1) End();
}

void OrcaWork::End() {
  try {
    if (!exception()) rest_.Copy();
  } catch (...) {
    Fail(std::current_exception());
  }
  rest_ = {};
  Uncount();
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();  // Before anybody can know of the end and stop the profiler.
    recordFunctionEndCallback_ = nullptr;
  }
  c10::intrusive_ptr<c10::ivalue::Future> future;
  c10::intrusive_ptr<OrcaWork> whole;
  std::exception_ptr error;
  bool python = false;
  {
    const std::lock_guard lock(mutex_);
    completed_ = true;
    ended_.store(true, std::memory_order_release);
    future = future_;
    python = python_future_;
    whole = std::move(whole_);
    error = exception_;
  }
  cv_.notify_all();
  if (whole) whole->PartEnded(error, -1);
  if (!future) return;
  if (!python) {
    CompleteFuture(*future);
    return;
  }
  PerProcess<FutureThreads>().Run([self = c10::intrusive_ptr<OrcaWork>::reclaim_copy(this),
                                   future] { self->CompleteFuture(*future); });
}

void OrcaWork::CompleteFuture(c10::ivalue::Future& future) const {
  if (exception_) {
    future.setError(exception_);
  } else if (nested_.size() > 1) {
    future.markCompleted(c10::IValue(nested_));
  } else {
    future.markCompleted(c10::IValue(nested_.empty() ? outputs_ : nested_[0]));
  }
}

bool OrcaWork::isSuccess() const {
  const std::lock_guard lock(mutex_);
  return completed_ && !exception_;
}

std::exception_ptr OrcaWork::exception() const {
  const std::lock_guard lock(mutex_);
  return exception_;
}

int OrcaWork::sourceRank() const {
  const std::lock_guard lock(mutex_);
  return source_;
}

std::vector<at::Tensor> OrcaWork::result() {
  TORCH_CHECK(nested_.size() <= 1, name_,
              ": the result is a list of lists; use get_future().value()");
  return nested_.empty() ? outputs_ : nested_[0];
}

bool OrcaWork::wait(std::chrono::milliseconds timeout) {
  if (timeout == kNoTimeout) timeout = limit_;
  if (!ended_.load(std::memory_order_acquire)) {
    std::unique_lock lock(mutex_);
    const auto ended = [this] { return completed_; };
    if (timeout == kNoTimeout) {
      cv_.wait(lock, ended);  // The engine limits the call itself.
    } else if (!cv_.wait_for(lock, timeout, ended)) {
      C10_THROW_ERROR(DistBackendError,
                      c10::str(name_, " (number ", sequence_, "): not done after ", timeout.count(),
                               " ms of wait(); it goes on"));
    }
    lock.unlock();
    StayIfProcessEnds();
  }
  if (exception_) std::rethrow_exception(exception_);  // Not written any more.
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> OrcaWork::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    // Reducers ask from C++, without the GIL; then nobody chains anything that waits.
    python_future_ = python_future_ || PyGILState_Check() == 1;
    if (future_) return future_;
    const auto list = c10::ListType::create(c10::TensorType::get());
    future_ = nested_.size() > 1
                  ? c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(list))
                  : c10::make_intrusive<c10::ivalue::Future>(list);
    future = future_;
    if (!completed_) return future;
  }
  CompleteFuture(*future);
  return future;
}

}  // namespace orca::plugin
