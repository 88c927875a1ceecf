// The c10d backend "orca": torch.distributed over the engine's collectives.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "engine.h"
#include "self_mailbox.h"
#include "task.h"
#include "work.h"

namespace orca::plugin {

using c10d::OpType;
using Milliseconds = std::chrono::milliseconds;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;

/// Options of one group: c10d's, and the engine's as "key=value" lines (see
/// orca::comm::CommOptions).
struct OrcaOptions : c10d::Backend::Options {
  explicit OrcaOptions(std::chrono::milliseconds limit = kBackendDefaultTimeout,
                       std::string lines = "")
      : Options("orca", limit), settings(std::move(lines)) {}
  std::string settings;
};

/// A process group of CPU tensors.
///
/// Calls with asyncOp == false run on the caller's thread and return an ended work; the others
/// return at once. Sparse all-reduces always run on the caller's thread. Calls may come from
/// several threads; the user sees to it that all ranks make the same calls in the same order.
///
/// The group belongs to the process that made it: in a forked child every call throws, and neither
/// shutdown nor the destructor does anything, so the parent's group lives on.
class OrcaBackend final : public c10d::Backend {
 public:
  /// Joins the group; returns when all ranks have.
  OrcaBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
              c10::intrusive_ptr<OrcaOptions> options);
  ~OrcaBackend() override;

  /// Leaves every group of this process: for the end of the interpreter.
  static void CloseAll();
  /// One line for people: "2 ranks on 1 host, shared memory".
  std::string Describe();

  const std::string getBackendName() const override { return "orca"; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options = {}) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  /// A copy: ProcessGroup::splitGroup writes into what it gets.
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(Milliseconds timeout) override { timeout_ms_ = timeout.count(); }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& opts) override;
  void abort() override;
  void shutdown() override;
  c10d::ErrorType getError() override { return static_cast<c10d::ErrorType>(group_->error.load()); }
  void setSequenceNumberForGroup() override {}  // Every rank counts from 0.
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  /// A barrier; its error names the ranks that did not come, so `wait_all_ranks` changes nothing.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

 private:
  /// The group, for as long as one call uses it; shutdown waits for these.
  class Use {
   public:
    Use(OrcaBackend& backend, const char* call);
    ~Use() { backend_.users_.fetch_sub(1, std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    OrcaComm* comm() const { return comm_; }

   private:
    OrcaBackend& backend_;
    OrcaComm* comm_;
  };

  template <typename TorchOptions>
  Task NewTask(OpType type, const char* name, const TorchOptions& opts) const {
    const bool async = opts.asyncOp || coalescing_.load(std::memory_order_relaxed);
    const bool unset = opts.timeout == c10d::kUnsetTimeout;
    return Task{type, name, async, unset ? Milliseconds(timeout_ms_) : opts.timeout};
  }
  void AddAllGather(Task& task, const at::Tensor& input, const at::Tensor& output);
  void AddReduceScatter(Task& task, const at::Tensor& input, const at::Tensor& output,
                        const c10d::ReduceOp& reduce);
  c10::intrusive_ptr<OrcaWork> Launch(Task&& task);
  /// Runs the steps on this thread.
  void Run(Task& task);
  /// Waits a while for the started collectives, as destroy_process_group may come right after their
  /// start.
  void Drain() const;
  void RunStep(OrcaComm* comm, const OrcaCall* call, const char* name);
  void Start(OrcaComm* comm, Task& task, OrcaWork& work);
  /// Gives the work to startCoalescing's list, if there is one.
  void Collect(const c10::intrusive_ptr<OrcaWork>& work);
  struct Message {
    decltype(OrcaApi::start_send) start;  // start_recv has the same form.
    int peer;
    int tag;
  };
  WorkPtr StartMessage(OpType type, const char* name, Tensors& tensors, const Message& message);
  /// Sends or receives `tensor` of this rank for itself.
  void ExchangeWithSelf(const c10::intrusive_ptr<OrcaWork>& work, const at::Tensor& tensor,
                        int tag);
  at::Tensor SparseSum(const at::Tensor& input, const c10d::AllreduceOptions& opts);

  const OrcaApi& api_;
  const int epoch_;  // The fork epoch that the group belongs to.
  const c10::intrusive_ptr<OrcaOptions> options_;
  const std::shared_ptr<GroupState> group_;
  std::atomic<std::int64_t> timeout_ms_;
  std::atomic<OrcaComm*> comm_{nullptr};
  std::atomic<int> users_{0};
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<bool> coalescing_{false};
  SelfMailbox self_mailbox_;
  std::mutex batch_mutex_;
  std::vector<c10::intrusive_ptr<OrcaWork>> batch_;  // Guarded by batch_mutex_.
};

}  // namespace orca::plugin
