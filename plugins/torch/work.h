// What a torch.distributed call returns.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "engine.h"

namespace orca::plugin {

/// What a backend and its works both know of the group.
struct GroupState {
  std::atomic<int> error{0};    ///< The latest failure, as c10d::ErrorType.
  std::atomic<int> pending{0};  ///< Started collectives that have not ended.
};

void NoteError(GroupState& group, const OrcaError& error);

/// Whether this thread is in a completion callback of the engine, and so must not wait for the
/// engine.
bool InEngineCallback();

/// Waits for what is chained to futures of ended calls. It uses Python objects, so it has to be
/// done when the interpreter ends.
void WaitForFutures();

/// The interpreter is about to end, and the groups with it; called by the thread that ends it.
void MarkProcessEnding();
/// Keeps a thread whose wait was cut short by that end from going back to Python. Before 3.14 an
/// interpreter that ends kills a thread that asks for the GIL by unwinding its stack, and torch's
/// bindings ask for it in a destructor, where unwinding means std::terminate. From 3.14 on the
/// interpreter itself holds such threads, as this does.
void StayIfProcessEnds();

/// What a call leaves to do when the engine is done with it, and what must stay alive until then.
struct Rest {
  std::vector<at::Tensor> held;                           ///< Memory that the engine uses.
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  ///< (to, from), made at the end.
  void Copy();
};

/// One call of a process group: ended from the start, or ended by the engine's callbacks.
///
/// Any thread may use it. It holds its tensors until the end. A future is made when somebody asks
/// for one.
class OrcaWork final : public c10d::Work {
 public:
  /// A call that has ended well.
  OrcaWork(c10d::OpType type, const char* name, std::uint64_t sequence,
           std::vector<at::Tensor> outputs)
      : Work(-1, type), name_(name), sequence_(sequence), outputs_(std::move(outputs)) {
    completed_ = true;
    ended_.store(true, std::memory_order_relaxed);
  }
  /// A call that goes on until Release and the end of all parts that it was told to expect.
  /// `profile` is the title of the event in a profile, or null.
  OrcaWork(c10d::OpType type, const char* name, std::uint64_t sequence,
           std::vector<at::Tensor> outputs, Rest rest, std::shared_ptr<GroupState> group,
           const char* profile);

  ~OrcaWork() override { Uncount(); }

  /// Sets the value of the future to a list of lists, as allgather_coalesced wants it. Before the
  /// future is used.
  void Nest(std::vector<std::vector<at::Tensor>> outputs) { nested_ = std::move(outputs); }

  /// Adds this work to the group's pending ones until it ends, or is destroyed without.
  void CountAsPending();
  /// One part more must end.
  void ExpectPart() { parts_.fetch_add(1, std::memory_order_relaxed); }
  /// As above; returns the context for the OnDone that ends the part.
  void* ExpectDone();
  /// Takes back an ExpectDone whose part could not be started.
  void Forget(void* context);
  /// A part ended: with an error, or a message from rank `source` (-1: no message).
  void PartEnded(std::exception_ptr error, int source);
  /// No further parts will come.
  void Release() { PartEnded(nullptr, -1); }
  /// Limits wait() for a call that the engine does not limit.
  void LimitWait(std::chrono::milliseconds limit) { limit_ = limit; }
  /// Remembers the first error.
  void Fail(std::exception_ptr error);
  /// Ends a part of `whole` when this work ends; `whole` must expect it.
  void Join(c10::intrusive_ptr<OrcaWork> whole);
  /// The engine's completion callback.
  static void OnDone(void* context, const OrcaError* error, std::int32_t source);

  const std::vector<at::Tensor>& outputs() const { return outputs_; }

  bool isCompleted() override { return ended_.load(std::memory_order_acquire); }
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override {}
  /// Throws the call's error, or DistBackendError when `timeout` passes first; the call then goes
  /// on.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return sequence_; }

 private:
  void End();
  void Uncount();
  void CompleteFuture(c10::ivalue::Future& future) const;

  const char* const name_;
  const std::uint64_t sequence_;
  const std::vector<at::Tensor> outputs_;
  std::chrono::milliseconds limit_ = kNoTimeout;
  std::vector<std::vector<at::Tensor>> nested_;
  Rest rest_;                          // Touched by the thread that ends the work only.
  std::shared_ptr<GroupState> group_;  // Null for works that have ended from the start.
  std::atomic<int> parts_{1};          // Parts that have not ended, and one for Release.
  std::atomic<bool> ended_{false};
  bool counted_ = false;        // Whether group_->pending counts this work.
  int source_ = -1;             // Guarded by mutex_, as are those below.
  bool python_future_ = false;  // Whether Python code may wait for future_.
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  c10::intrusive_ptr<OrcaWork> whole_;
};

}  // namespace orca::plugin
