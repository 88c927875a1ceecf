#include "orca/comm/types.h"

namespace orca::comm {

std::size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt16:
      return 2;
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

const char* Name(DType dtype) {
  static constexpr const char* kNames[kDTypeCount] = {"float64", "float32", "float16", "bfloat16",
                                                      "int8",    "int16",   "int32",   "int64",
                                                      "uint8",   "bool"};
  const auto index = static_cast<unsigned>(dtype);
  return index < kDTypeCount ? kNames[index] : "unknown type";
}

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
