// Checkpoints that are written while training goes on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "orca/core/error.h"
#include "orca/core/export.h"
#include "orca/io/checkpoint_store.h"

namespace orca::io {

struct AsyncWriterOptions {
  /// Called by the writing thread at the first failure after a success; without it the error is
  /// logged.
  std::function<void(const Error&)> on_error = {};
  /// Called by the writing thread for every checkpoint that is complete.
  std::function<void(std::uint64_t iteration)> on_saved = {};
  /// A checkpoint that failed is tried again after this time, unless a newer one came first.
  std::chrono::milliseconds retry_after{30'000};
};

/// Writes checkpoints on a thread of its own. Any thread may use it.
///
/// A failure (a full disk, a folder that cannot be written) is reported once and never thrown at
/// the trainer; each later checkpoint is a new attempt. Of checkpoints that come faster than the
/// disk takes them only the newest waits. The destructor finishes the one that is being written,
/// and tries the one that waits once.
class ORCA_API AsyncWriter {
 public:
  explicit AsyncWriter(CheckpointStore store, AsyncWriterOptions options = {});
  AsyncWriter(const AsyncWriter&) = delete;
  AsyncWriter& operator=(const AsyncWriter&) = delete;
  ~AsyncWriter();

  /// Takes `content`; its `owner` keeps the memory, which must not change until it is released.
  /// Never waits for the disk.
  void Submit(CheckpointContent content);

  /// Waits until nothing is left to write; a checkpoint that failed is tried again at once. Throws
  /// the error of that attempt, or kTimeout.
  void Flush(std::chrono::milliseconds timeout);

  /// Checkpoints that are complete.
  std::uint64_t saved() const;
  /// Checkpoints that a newer one replaced before they were written.
  std::uint64_t replaced() const;

 private:
  void Run();
  void Attempt(std::unique_lock<std::mutex>& lock);
  std::optional<Error> TrySave(const CheckpointContent& content);
  void Report(const Error& error) const;

  CheckpointStore store_;  // used by the thread alone
  const AsyncWriterOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::optional<CheckpointContent> waiting_;
  bool is_postponed_ = false;                    // the one that waits has failed before
  std::chrono::steady_clock::time_point due_{};  // when a postponed one is tried again
  bool is_writing_ = false;
  bool is_stopping_ = false;
  bool is_reported_ = false;
  std::optional<Error> last_error_;  // of the last attempt
  std::uint64_t attempts_ = 0;
  std::uint64_t saved_ = 0;
  std::uint64_t replaced_ = 0;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace orca::io
