#include "orca/comm/types.h"

namespace orca::comm {

const char* Name(ReduceOp op) {
  static constexpr const char* kNames[kReduceOpCount] = {
      "sum", "average", "product", "min", "max", "bitand", "bitor", "bitxor", "premulsum"};
  const auto index = static_cast<unsigned>(op);
  return index < kReduceOpCount ? kNames[index] : "unknown operator";
}

const char* Name(Op op) {
  static constexpr const char* kNames[kOpCount] = {"barrier",   "allreduce", "reduce",
                                                   "broadcast", "allgather", "reduce_scatter",
                                                   "alltoall",  "gather",    "scatter"};
  const auto index = static_cast<unsigned>(op);
  return index < kOpCount ? kNames[index] : "unknown operation";
}

bool Supports(ReduceOp op, DType dtype) {
  const bool is_float = static_cast<unsigned>(dtype) <= static_cast<unsigned>(DType::kBFloat16);
  switch (op) {
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      return !is_float;
    case ReduceOp::kPreMulSum:
      return is_float;
    case ReduceOp::kAverage:
      return dtype != DType::kBool;
    default:
      return true;
  }
}

}  // namespace orca::comm
