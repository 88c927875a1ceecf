#include "orca/io/async_writer.h"

#include <fmt/format.h>
#include <pthread.h>

#include <exception>
#include <new>
#include <utility>

#include "orca/core/deadline.h"
#include "orca/core/log.h"
#include "orca/core/mutant.h"

namespace orca::io {
namespace {

using Clock = std::chrono::steady_clock;

// How long a wait for nothing in particular lasts before it begins anew.
constexpr std::chrono::minutes kIdle(10);

}  // namespace

AsyncWriter::AsyncWriter(CheckpointStore store, AsyncWriterOptions options)
    : store_(std::move(store)), options_(std::move(options)), thread_([this] { Run(); }) {}

AsyncWriter::~AsyncWriter() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
}

void AsyncWriter::Submit(CheckpointContent content) {
  std::optional<CheckpointContent> old;  // goes after the lock: its owner may take time
  {
    const std::lock_guard lock(mutex_);
    old = std::exchange(waiting_, std::move(content));
    is_postponed_ = false;
    if (old) ++replaced_;
  }
  changed_.notify_all();
}

void AsyncWriter::Flush(std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::After(timeout);
  std::unique_lock lock(mutex_);
  const std::uint64_t before = attempts_;
  is_postponed_ = false;
  changed_.notify_all();
  const auto is_over = [&] {
    const bool has_failed = attempts_ > before && is_postponed_;
    return !is_writing_ && (!waiting_ || has_failed);
  };
  if (!changed_.wait_until(lock, deadline.at(), is_over)) {
    throw Error(Code::kTimeout,
                fmt::format("checkpoints in {} are not written after {} ms; the disk is slow, or "
                            "give it more time",
                            store_.folder().string(), timeout.count()));
  }
  if (waiting_ && last_error_) throw Error(*last_error_);
}

std::uint64_t AsyncWriter::saved() const {
  const std::lock_guard lock(mutex_);
  return saved_;
}

std::uint64_t AsyncWriter::replaced() const {
  const std::lock_guard lock(mutex_);
  return replaced_;
}

void AsyncWriter::Run() {
  ::pthread_setname_np(::pthread_self(), "orca-checkpoint");
  std::unique_lock lock(mutex_);
  while (true) {
    const bool is_due = waiting_ && (!is_postponed_ || Clock::now() >= due_);
    if (is_due || (waiting_ && is_stopping_)) {
      Attempt(lock);
      // The last one was tried once; nobody would see a second failure.
      if (is_stopping_ && is_postponed_) return;
    } else if (is_stopping_) {
      return;
    } else {
      changed_.wait_until(lock, waiting_ ? due_ : Clock::now() + kIdle);
    }
  }
}

void AsyncWriter::Attempt(std::unique_lock<std::mutex>& lock) {
  std::optional<CheckpointContent> content = std::exchange(waiting_, std::nullopt);
  is_postponed_ = false;
  is_writing_ = true;
  lock.unlock();
  const std::uint64_t iteration = content->progress.iteration;
  const std::optional<Error> error = TrySave(*content);
  if (!error) {
    content.reset();  // The caller's memory is free before anybody hears of it.
    if (options_.on_saved) options_.on_saved(iteration);
  }
  lock.lock();
  const bool is_news = error && (!is_reported_ || IsMutant("writer-once"));
  if (!error && is_reported_)
    Log(LogLevel::kInfo, fmt::format("checkpoints in {} are written again, from iteration {} on",
                                     store_.folder().string(), iteration));
  is_reported_ = error.has_value();
  last_error_ = error;
  if (is_news) {
    lock.unlock();
    Report(*error);
    lock.lock();
  }
  if (error && !waiting_ && !IsMutant("writer-retry")) {
    waiting_ = std::exchange(content, std::nullopt);
    is_postponed_ = true;
    due_ = Clock::now() + options_.retry_after;
  }
  if (!error) ++saved_;
  ++attempts_;
  is_writing_ = false;
  changed_.notify_all();
  if (!content) return;
  // A newer one came meanwhile: this one goes, without the lock.
  ++replaced_;
  lock.unlock();
  content.reset();
  lock.lock();
}

std::optional<Error> AsyncWriter::TrySave(const CheckpointContent& content) {
  try {
    store_.Save(content);
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(Code::kResourceExhausted, "no memory for writing a checkpoint");
  } catch (const std::exception& error) {
    return Error(Code::kInternal, error.what());
  }
}

void AsyncWriter::Report(const Error& error) const {
  if (options_.on_error) {
    options_.on_error(error);
    return;
  }
  Log(LogLevel::kError,
      fmt::format("a checkpoint was not written: {}; training goes on, the older checkpoints are "
                  "there, and later ones are tried (further failures are not reported)",
                  error.what()));
}

}  // namespace orca::io
