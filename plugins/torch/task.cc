#include "task.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <optional>
#include <torch/csrc/distributed/c10d/Utils.hpp>

namespace orca::plugin {
namespace {

std::optional<DType> EngineType(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kDouble:
      return DType::kFloat64;
    case at::kHalf:
      return DType::kFloat16;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kChar:
      return DType::kInt8;
    case at::kShort:
      return DType::kInt16;
    case at::kInt:
      return DType::kInt32;
    case at::kLong:
      return DType::kInt64;
    case at::kByte:
      return DType::kUInt8;
    case at::kBool:
      return DType::kBool;
    default:
      return std::nullopt;
  }
}

// Whether the memory can be handed over as it is: a lazily conjugated or negated tensor holds other
// numbers than it stands for.
bool IsPlain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor PlainCopy(const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous))
      .copy_(tensor);
}

const char* ReduceName(c10d::ReduceOp::RedOpType op) {
  static constexpr const char* kNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                           "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  return op < std::size(kNames) ? kNames[op] : "an unknown operator";
}

double Factor(const c10d::ReduceOp& reduce) {
  const auto* supplement = dynamic_cast<const c10d::PreMulSumSupplement*>(reduce.supplement_.get());
  if (supplement == nullptr) return 1.0;
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>()
                                             : supplement->double_factor;
}

}  // namespace

Step& Task::Add(Op op, DType dtype) {
  Step& step = steps.emplace_back();
  step.call.op = static_cast<std::uint8_t>(op);
  step.call.dtype = static_cast<std::uint8_t>(dtype);
  step.call.factor = 1.0;
  step.call.timeout_ms = timeout.count();
  return step;
}

Step& Task::Add(Op op, DType dtype, const c10d::ReduceOp& reduce) {
  Step& step = Add(op, dtype);
  step.call.reduce =
      static_cast<std::uint8_t>(reduce.op_);  // c10d and the engine number them alike.
  if (reduce.op_ == c10d::ReduceOp::PREMUL_SUM) step.call.factor = Factor(reduce);
  return step;
}

OrcaBuffer Task::In(const at::Tensor& tensor) {
  CheckDense(tensor);
  if (IsPlain(tensor)) {
    if (async) rest.held.push_back(tensor);
    return {const_cast<void*>(tensor.const_data_ptr()), tensor.nbytes()};
  }
  const at::Tensor& copy = rest.held.emplace_back(PlainCopy(tensor));
  return {copy.mutable_data_ptr(), copy.nbytes()};
}

OrcaBuffer Task::Out(const at::Tensor& tensor) {
  CheckDense(tensor);
  if (IsPlain(tensor)) {
    if (async) rest.held.push_back(tensor);
    return {tensor.mutable_data_ptr(), tensor.nbytes()};
  }
  auto copy =
      at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  rest.copies.emplace_back(tensor, copy);
  return {copy.mutable_data_ptr(), copy.nbytes()};
}

OrcaBuffer Task::InOut(const at::Tensor& tensor) {
  CheckDense(tensor);
  if (IsPlain(tensor)) return Out(tensor);
  auto copy = PlainCopy(tensor);
  rest.copies.emplace_back(tensor, copy);
  return {copy.mutable_data_ptr(), copy.nbytes()};
}

DType Task::MoveType(const at::Tensor& tensor) const {
  return EngineType(tensor.scalar_type()).value_or(DType::kUInt8);
}

DType Task::ReduceType(const at::Tensor& tensor, const c10d::ReduceOp& reduce) const {
  const at::ScalarType scalar = tensor.scalar_type();
  if (const auto plain = EngineType(scalar)) return *plain;
  if (at::isComplexType(scalar)) {
    if (c10d::isComplexViewAsRealAllowed(reduce)) return *EngineType(at::toRealValueType(scalar));
    Invalid(c10::str("does not support ", ReduceName(reduce.op_), " on complex tensors"));
  }
  Invalid(c10::str("cannot reduce tensors of type ", scalar,
                   "; it reduces float64, float32, float16, bfloat16, int8, int16, int32, int64, "
                   "uint8, bool and complex types"));
}

void Task::CheckDense(const at::Tensor& tensor) const {
  if (C10_LIKELY(tensor.layout() == at::kStrided && tensor.device().is_cpu())) return;
  if (tensor.layout() != at::kStrided) {
    Invalid(c10::str("only supports dense tensors, got layout ", tensor.layout(),
                     "; call to_dense() first"));
  }
  Invalid(c10::str("works on CPU tensors, got one on ", tensor.device(),
                   "; for CUDA tensors start the group with init_process_group("
                   "\"cpu:orca,cuda:nccl\"), or move the tensor with .cpu()"));
}

void Task::CheckOne(const std::vector<at::Tensor>& tensors, const char* what) const {
  if (C10_UNLIKELY(tensors.size() != 1)) {
    Invalid(c10::str("requires a single-element ", what, " tensor list, got ", tensors.size()));
  }
}

void Task::CheckCount(std::size_t count, std::size_t expected, const char* what) const {
  if (C10_UNLIKELY(count != expected)) {
    Invalid(c10::str("Incorrect ", what, " list size ", count, ". It should be ", expected,
                     ", the size of the process group."));
  }
}

void Task::CheckRoot(std::int64_t root, int world) const {
  if (C10_UNLIKELY(root < 0 || root >= world)) {
    Invalid(c10::str("invalid root rank: ", root, "; the group has ranks 0 to ", world - 1));
  }
}

void Task::CheckSameType(const at::Tensor& tensor, const at::Tensor& like) const {
  if (C10_UNLIKELY(tensor.scalar_type() != like.scalar_type())) {
    Invalid(c10::str("invalid tensor type: expected ", like.scalar_type(), ", got ",
                     tensor.scalar_type(), "; inputs and outputs must have one type"));
  }
}

}  // namespace orca::plugin
