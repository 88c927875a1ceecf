// Reductions over several sources into several destinations, vectorised for the processor at hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "orca/comm/types.h"
#include "orca/core/export.h"

namespace orca::comm {

/// What to do with the elements of the sources.
struct Reduction {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  /// For kPreMulSum: one factor a source. For kAverage: `divisor`, the number of values averaged,
  /// which may be more than the number of sources (partial sums) or 0 (do not divide yet).
  std::span<const double> factors = {};
  std::size_t divisor = 0;
};

/// Computes dsts[*][i] = srcs[0][i] op srcs[1][i] op ..., in this order, for `count` elements.
/// Every destination gets the same bits; a destination may be one of the sources (the same
/// pointer), but ranges must not overlap otherwise. Memory need not be aligned; at 64 bytes it is
/// fastest. One source is a copy (with factor or divisor applied). Any thread.
///
/// float16 and bfloat16 accumulate in float32 and are rounded once, to nearest even; float32 and
/// float64 in themselves. Min and max keep NaN. Integer sums and products wrap; averages truncate
/// towards zero, and those of types below 64 bits are summed without overflow. A bool is true
/// unless 0: sum and max are "or", product and min are "and"; results are 0 or 1. The bits are the
/// same on every instruction set, but for the payload of a NaN.
///
/// Throws kInvalidArgument if the operator is not defined for the type, there is no source, or the
/// factors are not one a source.
ORCA_API void Reduce(const Reduction& reduction, std::span<const std::byte* const> srcs,
                     std::span<std::byte* const> dsts, std::size_t count);

/// The instruction set in use: "avx512", "avx2" or "baseline", the best that runs here. ORCA_ISA in
/// the environment may ask for a lower one; another value throws kInvalidArgument at the first use.
ORCA_API const char* KernelIsa();

/// float32 to bfloat16 and back, for the wire. Rounds to nearest even; NaN stays NaN.
void PackBFloat16(const float* from, std::uint16_t* to, std::size_t count);
void UnpackBFloat16(const std::uint16_t* from, float* to, std::size_t count);

}  // namespace orca::comm
