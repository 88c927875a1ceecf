#include "data/batch_loader.h"

#include <fmt/format.h>
#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/log.h"

namespace orca::data {
namespace {

class PlainLoader final : public BatchLoader {
 public:
  explicit PlainLoader(Gatherer gatherer) : gatherer_(std::move(gatherer)) {}

  std::uint64_t steps() const override { return gatherer_.order().steps(); }

  std::shared_ptr<const Batch> Next() override {
    return next_ < steps() ? gatherer_.Gather(next_++) : nullptr;
  }

 private:
  Gatherer gatherer_;
  std::uint64_t next_ = 0;
};

/// The threads that gather, and what they share with the one that asks.
class Crew {
 public:
  Crew(Gatherer gatherer, std::size_t ahead, int threads)
      : gatherer_(std::move(gatherer)), steps_(gatherer_.order().steps()), ready_(ahead) {
    for (int i = 0; i < threads; ++i) {
      threads_.push_back(StartThread([this](const std::stop_token& stop) { Work(stop); }));
    }
  }

  std::uint64_t steps() const { return steps_; }

  /// Never waits for a thread: one that was stopped in its work, on a machine with more to do than
  /// processors, may be gone for long.
  std::shared_ptr<const Batch> Next() {
    std::unique_lock lock(mutex_);
    if (taken_ == steps_) return nullptr;
    auto& slot = ready_[taken_ % ready_.size()];
    // This batch; or, when a thread is at it, the next one, which will be wanted soon.
    if (!slot && MayBegin()) GatherNext(lock);
    if (!slot) {
      // It is still not there: what a thread makes of it is thrown away.
      const std::uint64_t step = taken_;
      lock.unlock();
      auto batch = gatherer_.Gather(step);
      lock.lock();
      slot = std::move(batch);
    }
    auto batch = std::exchange(slot, nullptr);
    ++taken_;
    lock.unlock();
    room_.notify_one();
    return batch;
  }

 private:
  // Both with mutex_ held.
  bool MayBegin() const { return begun_ < steps_ && begun_ - taken_ < ready_.size(); }
  void GatherNext(std::unique_lock<std::mutex>& lock) {
    const std::uint64_t step = begun_++;
    lock.unlock();
    std::shared_ptr<const Batch> batch;
    try {
      batch = gatherer_.Gather(step);
    } catch (const std::exception& error) {
      // Whoever asks for the batch tries again, and is told when that fails too.
      Log(LogLevel::kDebug, fmt::format("batch {} was not gathered ahead: {}", step, error.what()));
    }
    lock.lock();
    if (step >= taken_) ready_[step % ready_.size()] = std::move(batch);
  }

  void Work(const std::stop_token& stop) {
    ::pthread_setname_np(::pthread_self(), "orca-gather");
    std::unique_lock lock(mutex_);
    // Without a limit: the user's step takes as long as it takes.
    while (room_.wait(lock, stop, [this] { return MayBegin() || begun_ == steps_; })) {
      if (begun_ == steps_ || stop.stop_requested()) return;
      GatherNext(lock);
    }
  }

  const Gatherer gatherer_;
  const std::uint64_t steps_;
  std::mutex mutex_;
  std::condition_variable_any room_;
  // Guarded by mutex_.
  std::vector<std::shared_ptr<const Batch>> ready_;  // a batch waits at step % size
  std::uint64_t begun_ = 0;                          // steps that somebody gathers or has gathered
  std::uint64_t taken_ = 0;                          // steps that were handed out
  // Last: they use all of the above.
  std::vector<std::jthread> threads_;
};

class AheadLoader final : public BatchLoader {
 public:
  AheadLoader(Gatherer gatherer, int ahead, int threads)
      : crew_(
            std::make_unique<Crew>(std::move(gatherer), static_cast<std::size_t>(ahead), threads)),
        forks_(ForkCount()) {}
  ~AheadLoader() override {
    // The threads exist in the parent only.
    if (Forked()) (void)crew_.release();
  }

  std::uint64_t steps() const override { return crew_->steps(); }

  std::shared_ptr<const Batch> Next() override {
    if (Forked()) {
      throw Error(Code::kFailedPrecondition,
                  "this process was forked, and the threads that gather stayed with its parent; "
                  "ask the store for batches again, with the last cursor as start");
    }
    return crew_->Next();
  }

 private:
  bool Forked() const { return ForkCount() != forks_; }

  std::unique_ptr<Crew> crew_;
  std::uint64_t forks_;
};

}  // namespace

std::unique_ptr<BatchLoader> NewPlainLoader(Gatherer gatherer) {
  return std::make_unique<PlainLoader>(std::move(gatherer));
}

std::unique_ptr<BatchLoader> NewAheadLoader(Gatherer gatherer, int ahead, int threads) {
  return std::make_unique<AheadLoader>(std::move(gatherer), ahead, threads);
}

}  // namespace orca::data
