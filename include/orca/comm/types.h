// What collectives are made of: operations and operators.
#pragma once

#include <cstddef>
#include <cstdint>

#include "orca/core/dtype.h"
#include "orca/core/export.h"

namespace orca::comm {

using orca::DType;
using orca::kDTypeCount;
using orca::Name;
using orca::SizeOf;

/// How elements of several ranks become one. float16 and bfloat16 accumulate in float32; sums run
/// in the order of the ranks, so every rank gets the same bits. Integer averages truncate towards
/// zero. Min and max keep NaN.
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kAverage = 1,
  kProduct = 2,
  kMin = 3,
  kMax = 4,
  kBitAnd = 5,
  kBitOr = 6,
  kBitXor = 7,
  kPreMulSum =
      8,  ///< Every rank's elements are multiplied by that rank's factor, then summed. Floats only.
};
inline constexpr int kReduceOpCount = 9;

/// The collective operations. The values are part of the wire format.
enum class Op : std::uint8_t {
  kBarrier = 0,
  kAllReduce = 1,
  kReduce = 2,
  kBroadcast = 3,
  kAllGather = 4,
  kReduceScatter = 5,
  kAllToAll = 6,
  kGather = 7,
  kScatter = 8,
};
inline constexpr int kOpCount = 9;

ORCA_API const char* Name(ReduceOp op);
ORCA_API const char* Name(Op op);

/// Whether `op` is defined for `dtype`: bitwise operators want integers or bool, a factor wants
/// floats.
ORCA_API bool Supports(ReduceOp op, DType dtype);

}  // namespace orca::comm
