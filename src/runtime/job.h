// One call of a function on workers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/controller.h"

namespace orca::runtime {

/// A call, from Submit to its end.
class Controller::Job final : public Run {
 public:
  Job(Controller& controller, RunSpec wanted, std::uint64_t number)
      : call(number),
        spec(std::move(wanted)),
        controller_(controller),
        thread_(controller.thread_) {}

  bool Wait(std::chrono::milliseconds timeout) override {
    const Deadline deadline = Deadline::After(timeout);
    thread_->RunUntil([this] { return ended(); }, deadline, turn_);
    std::unique_lock lock(mutex_);
    return ended_condition_.wait_until(lock, deadline.at(), [this] { return ended_; });
  }
  const std::vector<Parcel>& results() const override { return results_; }
  const std::optional<RunFailure>& failure() const override { return failure_; }
  void Cancel(const std::string& reason) override;

  void End(std::vector<Parcel> results, std::optional<RunFailure> failure) {
    {
      const std::lock_guard lock(mutex_);
      if (ended_) return;
      results_ = std::move(results);
      failure_ = std::move(failure);
      ended_ = true;
      ended_condition_.notify_all();
    }
    thread_->Wake(turn_);
  }
  bool ended() const {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

  // The loop's thread only.
  const std::uint64_t call;
  RunSpec spec;
  int attempt = 0;
  int restarts = 0;
  Loop::Clock::time_point began;  // this attempt
  int short_attempts = 0;         // in a row
  std::chrono::milliseconds back_off{0};
  bool waits = false;                  // until its next attempt begins
  std::vector<std::uint64_t> members;  // worker of each rank
  std::shared_ptr<Group> group;
  std::vector<Parcel> gathered;
  std::vector<std::shared_ptr<const data::ShardHold>> shards;  // that the results name
  std::vector<std::uint64_t> sequences;
  std::set<int> running;       // ranks that have not ended
  std::vector<Json> returned;  // of ranks that have: what the others are told
  bool tells_returned = false;
  std::vector<Cause> causes;
  /// How far a rank was at some time.
  struct Pace {
    Loop::Clock::time_point time;
    std::uint64_t sequence = 0;
    double waited = 0;  // seconds, in collectives
  };
  std::map<int, std::pair<Pace, Pace>> paces;  // of each rank: the first, and the last
  bool told_pace = false;
  bool concluding = false;
  bool noted = true;   // in the log
  bool again = false;  // begin anew when all ranks have ended
  std::string cancel_reason;

 private:
  Controller& controller_;
  const std::shared_ptr<LoopThread> thread_;
  mutable std::mutex mutex_;
  std::condition_variable ended_condition_;
  std::condition_variable turn_;  // of the loop
  bool ended_ = false;
  std::vector<Parcel> results_;
  std::optional<RunFailure> failure_;
};

}  // namespace orca::runtime
