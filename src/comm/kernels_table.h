// The reduction kernels of one instruction set. Internal to kernels*.cc and their test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "orca/comm/kernels.h"
#include "orca/comm/types.h"

namespace orca::comm {

/// One call of a kernel. Plain pointers: files compiled for a higher instruction set must not
/// instantiate inline code of shared headers, since the linker might keep that copy for everybody.
struct KernelCall {
  const std::byte* const* srcs;
  std::size_t nsrc;  ///< At least 1.
  std::byte* const* dsts;
  std::size_t ndst;
  std::size_t bytes;      ///< Of one source: the count of elements times their size.
  const double* factors;  ///< For kPreMulSum: one a source.
  double divisor;         ///< For kAverage: at least 1.
  double reciprocal;      ///< Of the divisor if it is exact, else 0.
};

struct KernelTable {
  using Kernel = void (*)(const KernelCall& call);

  const char* isa;
  Kernel reduce[kDTypeCount][kReduceOpCount];  ///< Null where Supports() is false.
  void (*pack_bfloat16)(const float* from, std::uint16_t* to, std::size_t count);
  void (*unpack_bfloat16)(const std::uint16_t* from, float* to, std::size_t count);
};

namespace baseline {
extern const KernelTable kKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable kKernels;
}
namespace avx512 {
extern const KernelTable kKernels;
}
#endif

/// The tables that this processor can run, the slowest first.
std::span<const KernelTable* const> RunnableKernels();

/// The best table, or the one called `wanted` if that is neither null nor empty. Throws
/// kInvalidArgument when there is none of that name here.
const KernelTable& ChooseKernels(const char* wanted);

/// Reduce() with the kernels of `table`.
void ReduceWith(const KernelTable& table, const Reduction& reduction,
                std::span<const std::byte* const> srcs, std::span<std::byte* const> dsts,
                std::size_t count);

}  // namespace orca::comm
