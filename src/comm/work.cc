#include "comm/work.h"

#include <fmt/format.h>

#include <utility>

#include "orca/core/error.h"

namespace orca::comm {

void Work::State::Finish(std::exception_ptr error, int from) {
  DoneCallback then;
  {
    const std::lock_guard lock(mutex);
    failure = error;
    source = from;
    done.store(true, std::memory_order_release);
    then = std::move(callback);
  }
  changed.notify_all();
  if (then) then(error, from);
}

bool Work::Done() const { return state_->done.load(std::memory_order_acquire); }

void Work::Wait(std::chrono::milliseconds timeout) const {
  if (!Done()) {
    std::unique_lock lock(state_->mutex);
    const auto done = [this] { return state_->done.load(); };
    if (timeout.count() == 0) {
      state_->changed.wait(lock, done);  // the call itself has a deadline
    } else if (!state_->changed.wait_for(lock, timeout, done)) {
      throw Error(
          Code::kTimeout,
          fmt::format(
              "the call has not ended after {} ms; it goes on, wait again or abort the group",
              timeout.count()));
    }
  }
  if (state_->failure) std::rethrow_exception(state_->failure);
}

int Work::source() const { return Done() ? state_->source : -1; }

}  // namespace orca::comm
