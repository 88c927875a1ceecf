// The state behind a Work handle.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>

#include "orca/comm/communicator.h"

namespace orca::comm {

/// Shared by the caller's handle and the thread that does the work.
struct Work::State {
  DoneCallback callback;

  /// Ends the call: wakes the waiters, then calls back. Once.
  void Finish(std::exception_ptr error, int source = -1);

  std::atomic<bool> done{false};
  std::mutex mutex;
  std::condition_variable changed;
  std::exception_ptr failure;  // written before `done`
  int source = -1;
};

}  // namespace orca::comm
