// The operations of OrcaBackend: arguments checked, tensors turned into buffers, then launched.
#include <ATen/record_function.h>

#include <torch/csrc/distributed/c10d/Utils.hpp>
#include <utility>

#include "backend.h"

namespace orca::plugin {

// --- collectives

WorkPtr OrcaBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  Task task = NewTask(OpType::BROADCAST, "orca:broadcast", opts);
  task.CheckOne(tensors, "input");
  task.CheckRoot(opts.rootRank, size_);
  Step& step = task.Add(Op::kBroadcast, task.MoveType(tensors[0]));
  step.call.root = static_cast<std::int32_t>(opts.rootRank);
  step.outputs.push_back(task.InOut(tensors[0]));
  step.inputs.push_back(step.outputs[0]);
  task.outputs = tensors;
  return Launch(std::move(task));
}

WorkPtr OrcaBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  Task task = NewTask(OpType::ALLREDUCE, "orca:all_reduce", opts);
  task.CheckOne(tensors, "input");
  const at::Tensor& tensor = tensors[0];
  if (C10_UNLIKELY(tensor.layout() == at::kSparse)) return allreduce_sparse(tensors, opts);
  Step& step = task.Add(Op::kAllReduce, task.ReduceType(tensor, opts.reduceOp), opts.reduceOp);
  step.outputs.push_back(task.InOut(tensor));
  step.inputs.push_back(step.outputs[0]);
  task.outputs = tensors;
  return Launch(std::move(task));
}

WorkPtr OrcaBackend::allreduce_coalesced(Tensors& tensors,
                                         const c10d::AllreduceCoalescedOptions& opts) {
  Task task = NewTask(OpType::ALLREDUCE_COALESCED, "orca:all_reduce_coalesced", opts);
  if (tensors.empty()) task.Invalid("requires non-empty tensor list");
  for (const at::Tensor& tensor : tensors) {
    Step& step = task.Add(Op::kAllReduce, task.ReduceType(tensor, opts.reduceOp), opts.reduceOp);
    step.outputs.push_back(task.InOut(tensor));
    step.inputs.push_back(step.outputs[0]);
  }
  task.outputs = tensors;
  return Launch(std::move(task));
}

WorkPtr OrcaBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const char* name = "orca:all_reduce";
  if (tensors.size() != 1) ThrowInvalid(name, "requires a single-element input tensor list");
  if (opts.reduceOp != c10d::ReduceOp::SUM) {
    ThrowInvalid(name, "sparse tensors can only be summed; use ReduceOp.SUM or to_dense()");
  }
  const at::NoGradGuard no_grad;
  const at::Tensor sum = SparseSum(tensors[0], opts);
  tensors[0].copy_(sum);
  return c10::make_intrusive<OrcaWork>(OpType::_ALLREDUCE_SPARSE, name, sequence_.load(),
                                       Tensors{tensors[0]});
}

// The number of elements differs by rank, so the ranks first exchange it; what follows depends on
// the answer. That is why this runs on the caller's thread: parts that a callback starts would mix
// with the caller's next calls in an order of their own on every rank.
at::Tensor OrcaBackend::SparseSum(const at::Tensor& input, const c10d::AllreduceOptions& opts) {
  c10d::AllreduceOptions blocking = opts;
  blocking.asyncOp = false;
  const auto make_task = [&] {
    Task task = NewTask(OpType::_ALLREDUCE_SPARSE, "orca:all_reduce", blocking);
    task.async = false;  // Even between startCoalescing and endCoalescing.
    return task;
  };
  const at::Tensor mine = input.coalesce();
  const at::Tensor indices = mine.indices();
  const at::Tensor values = mine.values();
  ++sequence_;

  Tensors shapes;
  {
    Task task = make_task();
    std::vector<std::int64_t> shape = mine.sizes().vec();
    shape.insert(shape.begin(), {values.size(0), mine.sparse_dim()});
    const at::Tensor own = at::tensor(shape, at::kLong);
    at::Tensor all = at::empty({size_, own.numel()}, at::kLong);
    AddAllGather(task, own, all);
    Run(task);
    shapes = all.unbind();
    for (const at::Tensor& other : shapes) {
      if (!other.slice(0, 1).equal(own.slice(0, 1))) {
        task.Invalid("sparse tensors differ in size or in their number of sparse dimensions");
      }
    }
  }
  Task task = make_task();
  const auto gather = [&](const at::Tensor& part, int rows_dim) {
    Step& step = task.Add(Op::kAllGather, task.MoveType(part));
    step.inputs.push_back(task.In(part));
    Tensors parts;
    for (const at::Tensor& shape : shapes) {
      std::vector<std::int64_t> sizes = part.sizes().vec();
      sizes[static_cast<std::size_t>(rows_dim)] = shape[0].item<std::int64_t>();
      step.outputs.push_back(task.Out(parts.emplace_back(at::empty(sizes, part.options()))));
    }
    return parts;
  };
  const Tensors all_indices = gather(indices, 1);
  const Tensors all_values = gather(values, 0);
  Run(task);
  return at::sparse_coo_tensor(at::cat(all_indices, 1), at::cat(all_values, 0), mine.sizes())
      .coalesce();
}

WorkPtr OrcaBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  Task task = NewTask(OpType::REDUCE, "orca:reduce", opts);
  task.CheckOne(tensors, "input");
  task.CheckRoot(opts.rootRank, size_);
  Step& step = task.Add(Op::kReduce, task.ReduceType(tensors[0], opts.reduceOp), opts.reduceOp);
  step.call.root = static_cast<std::int32_t>(opts.rootRank);
  step.outputs.push_back(task.InOut(tensors[0]));
  step.inputs.push_back(step.outputs[0]);
  task.outputs = tensors;
  return Launch(std::move(task));
}

WorkPtr OrcaBackend::allgather(TensorLists& outputs, Tensors& inputs,
                               const c10d::AllgatherOptions& opts) {
  Task task = NewTask(OpType::ALLGATHER, "orca:all_gather", opts);
  task.CheckOne(inputs, "input");
  if (outputs.size() != 1) task.Invalid("requires a single-element output tensor list");
  task.CheckCount(outputs[0].size(), static_cast<std::size_t>(size_), "output");
  Step& step = task.Add(Op::kAllGather, task.MoveType(inputs[0]));
  step.inputs.push_back(task.In(inputs[0]));
  for (const at::Tensor& output : outputs[0]) {
    task.CheckSameType(output, inputs[0]);
    step.outputs.push_back(task.Out(output));
  }
  const at::Tensor& own = outputs[0][static_cast<std::size_t>(rank_)];
  if (own.numel() != inputs[0].numel()) {
    task.Invalid(c10::str("invalid tensor size at index ", rank_, " (expected ", inputs[0].sizes(),
                          ", got ", own.sizes(), ")"));
  }
  task.outputs = outputs[0];
  return Launch(std::move(task));
}

void OrcaBackend::AddAllGather(Task& task, const at::Tensor& input, const at::Tensor& output) {
  task.CheckSameType(output, input);
  if (output.numel() != input.numel() * size_) {
    task.Invalid(
        c10::str("output tensor size must be equal to world_size times input tensor size, "
                 "got ",
                 output.numel(), " elements for ", size_, " x ", input.numel()));
  }
  Step& step = task.Add(Op::kAllGather, task.MoveType(input));
  step.inputs.push_back(task.In(input));
  step.outputs.push_back(task.Out(output));
}

WorkPtr OrcaBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                     const c10d::AllgatherOptions& opts) {
  Task task = NewTask(OpType::_ALLGATHER_BASE, "orca:all_gather_into_tensor", opts);
  AddAllGather(task, input, output);
  task.outputs = {output};
  return Launch(std::move(task));
}

WorkPtr OrcaBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                     const c10d::AllgatherOptions& opts) {
  Task task = NewTask(OpType::ALLGATHER_COALESCED, "orca:all_gather_into_tensor_coalesced", opts);
  if (outputs.size() != inputs.size()) {
    task.Invalid("requires input/output tensor lists to have the same length");
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) AddAllGather(task, inputs[i], outputs[i]);
  task.outputs = outputs;
  return Launch(std::move(task));
}

WorkPtr OrcaBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                         const c10d::AllgatherOptions& opts) {
  Task task = NewTask(OpType::ALLGATHER_COALESCED, "orca:all_gather_coalesced", opts);
  if (inputs.empty()) task.Invalid("requires non-empty input tensor list");
  task.CheckCount(outputs.size(), static_cast<std::size_t>(size_), "output");
  for (const Tensors& list : outputs) {
    if (list.size() != inputs.size()) {
      task.Invalid(c10::str("invalid output size: (expected length ", inputs.size(), ", got ",
                            list.size(), ")"));
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Step& step = task.Add(Op::kAllGather, task.MoveType(inputs[i]));
    step.inputs.push_back(task.In(inputs[i]));
    for (const Tensors& list : outputs) {
      task.CheckSameType(list[i], inputs[i]);
      step.outputs.push_back(task.Out(list[i]));
    }
  }
  task.nested = outputs;
  return Launch(std::move(task));
}

WorkPtr OrcaBackend::gather(TensorLists& outputs, Tensors& inputs,
                            const c10d::GatherOptions& opts) {
  Task task = NewTask(OpType::GATHER, "orca:gather", opts);
  task.CheckOne(inputs, "input");
  task.CheckRoot(opts.rootRank, size_);
  Step& step = task.Add(Op::kGather, task.MoveType(inputs[0]));
  step.call.root = static_cast<std::int32_t>(opts.rootRank);
  step.inputs.push_back(task.In(inputs[0]));
  if (rank_ != opts.rootRank) {
    if (!outputs.empty()) task.Invalid("requires empty output on non-root");
    return Launch(std::move(task));
  }
  if (outputs.size() != 1) task.Invalid("requires a single-element output list");
  task.CheckCount(outputs[0].size(), static_cast<std::size_t>(size_), "output");
  for (const at::Tensor& output : outputs[0]) {
    task.CheckSameType(output, inputs[0]);
    step.outputs.push_back(task.Out(output));
  }
  task.outputs = outputs[0];
  return Launch(std::move(task));
}

WorkPtr OrcaBackend::scatter(Tensors& outputs, TensorLists& inputs,
                             const c10d::ScatterOptions& opts) {
  Task task = NewTask(OpType::SCATTER, "orca:scatter", opts);
  task.CheckOne(outputs, "output");
  task.CheckRoot(opts.rootRank, size_);
  Step& step = task.Add(Op::kScatter, task.MoveType(outputs[0]));
  step.call.root = static_cast<std::int32_t>(opts.rootRank);
  step.outputs.push_back(task.Out(outputs[0]));
  task.outputs = outputs;
  if (rank_ != opts.rootRank) {
    if (!inputs.empty()) task.Invalid("requires empty input on non-root");
    return Launch(std::move(task));
  }
  if (inputs.size() != 1) task.Invalid("requires a single-element input list");
  task.CheckCount(inputs[0].size(), static_cast<std::size_t>(size_), "input");
  for (const at::Tensor& input : inputs[0]) {
    task.CheckSameType(input, outputs[0]);
    step.inputs.push_back(task.In(input));
  }
  return Launch(std::move(task));
}

WorkPtr OrcaBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                    const c10d::ReduceScatterOptions& opts) {
  Task task = NewTask(OpType::REDUCE_SCATTER, "orca:reduce_scatter", opts);
  task.CheckOne(outputs, "output");
  if (inputs.size() != 1) task.Invalid("requires a single-element input list");
  task.CheckCount(inputs[0].size(), static_cast<std::size_t>(size_), "input");
  Step& step =
      task.Add(Op::kReduceScatter, task.ReduceType(outputs[0], opts.reduceOp), opts.reduceOp);
  for (const at::Tensor& input : inputs[0]) {
    task.CheckSameType(input, outputs[0]);
    step.inputs.push_back(task.In(input));
  }
  step.outputs.push_back(task.Out(outputs[0]));
  task.outputs = outputs;
  return Launch(std::move(task));
}

void OrcaBackend::AddReduceScatter(Task& task, const at::Tensor& input, const at::Tensor& output,
                                   const c10d::ReduceOp& reduce) {
  task.CheckSameType(output, input);
  if (input.numel() != output.numel() * size_) {
    task.Invalid(
        c10::str("input tensor must be the same size as output size times world size, got ",
                 input.numel(), " elements for ", size_, " x ", output.numel()));
  }
  Step& step = task.Add(Op::kReduceScatter, task.ReduceType(input, reduce), reduce);
  step.inputs.push_back(task.In(input));
  step.outputs.push_back(task.Out(output));
}

WorkPtr OrcaBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::ReduceScatterOptions& opts) {
  Task task = NewTask(OpType::_REDUCE_SCATTER_BASE, "orca:reduce_scatter_tensor", opts);
  AddReduceScatter(task, input, output, opts.reduceOp);
  task.outputs = {output};
  return Launch(std::move(task));
}

WorkPtr OrcaBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                     const c10d::ReduceScatterOptions& opts) {
  Task task = NewTask(OpType::REDUCE_SCATTER_TENSOR_COALESCED,
                      "orca:reduce_scatter_tensor_coalesced", opts);
  if (outputs.size() != inputs.size()) {
    task.Invalid("requires input/output tensor lists to have the same length");
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    AddReduceScatter(task, inputs[i], outputs[i], opts.reduceOp);
  }
  task.outputs = outputs;
  return Launch(std::move(task));
}

WorkPtr OrcaBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                   std::vector<std::int64_t>& output_splits,
                                   std::vector<std::int64_t>& input_splits,
                                   const c10d::AllToAllOptions& opts) {
  Task task = NewTask(OpType::ALLTOALL_BASE, "orca:all_to_all_single", opts);
  task.CheckSameType(output, input);
  Step& step = task.Add(Op::kAllToAll, task.MoveType(input));
  const OrcaBuffer from = task.In(input);
  const OrcaBuffer to = task.Out(output);
  task.outputs = {output};
  if (output_splits.empty() && input_splits.empty()) {
    if (output.numel() != input.numel()) task.Invalid("Tensors are not equal in size");
    if (input.dim() > 0) c10d::checkSplitSizes(input_splits, input, size_);
    step.inputs.push_back(from);
    step.outputs.push_back(to);
    return Launch(std::move(task));
  }
  c10d::checkSplitSizes(input_splits, input, size_);
  c10d::checkSplitSizes(output_splits, output, size_);
  const auto cut = [this](const std::vector<std::int64_t>& splits, const at::Tensor& tensor,
                          OrcaBuffer whole, c10::SmallVector<OrcaBuffer, 4>& parts) {
    const auto world = static_cast<std::size_t>(size_);
    std::vector<std::size_t> lengths(world);
    std::vector<std::size_t> offsets(world);
    c10d::computeLengthsAndOffsets(splits, tensor, &lengths, &offsets);
    const std::size_t element = tensor.element_size();
    for (std::size_t i = 0; i < world; ++i) {
      parts.push_back(
          {static_cast<char*>(whole.data) + offsets[i] * element, lengths[i] * element});
    }
  };
  cut(input_splits, input, from, step.inputs);
  cut(output_splits, output, to, step.outputs);
  return Launch(std::move(task));
}

WorkPtr OrcaBackend::alltoall(Tensors& outputs, Tensors& inputs,
                              const c10d::AllToAllOptions& opts) {
  Task task = NewTask(OpType::ALLTOALL, "orca:all_to_all", opts);
  task.CheckCount(inputs.size(), static_cast<std::size_t>(size_), "input");
  task.CheckCount(outputs.size(), static_cast<std::size_t>(size_), "output");
  Step& step = task.Add(Op::kAllToAll, task.MoveType(inputs[0]));
  for (const at::Tensor& input : inputs) {
    task.CheckSameType(input, inputs[0]);
    step.inputs.push_back(task.In(input));
  }
  for (const at::Tensor& output : outputs) {
    task.CheckSameType(output, inputs[0]);
    step.outputs.push_back(task.Out(output));
  }
  task.outputs = outputs;
  return Launch(std::move(task));
}

WorkPtr OrcaBackend::barrier(const c10d::BarrierOptions& opts) {
  Task task = NewTask(OpType::BARRIER, "orca:barrier", opts);
  task.Add(Op::kBarrier, DType::kUInt8);
  return Launch(std::move(task));
}

void OrcaBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool) {
  c10d::BarrierOptions blocking = opts;
  blocking.asyncOp = false;
  barrier(blocking)->wait();
}

// --- messages

WorkPtr OrcaBackend::StartMessage(OpType type, const char* name, Tensors& tensors,
                                  const Message& message) {
  Task task{type, name, true, Milliseconds(0)};
  task.CheckOne(tensors, "input");
  if (message.tag < 0) task.Invalid(c10::str("Tag must be nonnegative, got ", message.tag));
  task.CheckDense(tensors[0]);
  const bool to_self = message.peer == rank_;
  OrcaBuffer buffer{};
  if (!to_self) buffer = type == OpType::SEND ? task.In(tensors[0]) : task.Out(tensors[0]);
  const Use use(*this, name);
  const bool profiled = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
  const std::uint64_t sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  auto work = c10::make_intrusive<OrcaWork>(type, name, sequence, tensors, std::move(task.rest),
                                            group_, profiled ? name : nullptr);
  if (to_self) {
    ExchangeWithSelf(work, tensors[0], message.tag);
    return work;
  }
  void* context = work->ExpectDone();
  OrcaError error;
  if (message.start(use.comm(), buffer, message.peer, static_cast<std::uint64_t>(message.tag),
                    &OrcaWork::OnDone, context, &error) != 0) {
    work->Forget(context);
    NoteError(*group_, error);
    ThrowError(error, name);
  }
  work->Release();
  Collect(work);
  return work;
}

void OrcaBackend::ExchangeWithSelf(const c10::intrusive_ptr<OrcaWork>& work,
                                   const at::Tensor& tensor, int tag) {
  work->LimitWait(Milliseconds(timeout_ms_));
  if (work->retrieveOpType() == OpType::SEND) {
    self_mailbox_.Send(tensor, tag);
  } else {
    work->ExpectPart();
    self_mailbox_.Recv(tensor, tag, work);
  }
  work->Release();
  Collect(work);
}

WorkPtr OrcaBackend::send(Tensors& tensors, int peer, int tag) {
  return StartMessage(OpType::SEND, "orca:send", tensors, {api_.start_send, peer, tag});
}

WorkPtr OrcaBackend::recv(Tensors& tensors, int peer, int tag) {
  return StartMessage(OpType::RECV, "orca:recv", tensors, {api_.start_recv, peer, tag});
}

WorkPtr OrcaBackend::recvAnysource(Tensors& tensors, int tag) {
  constexpr int kAnySource = -1;
  return StartMessage(OpType::RECVANYSOURCE, "orca:recv_anysource", tensors,
                      {api_.start_recv, kAnySource, tag});
}

}  // namespace orca::plugin
