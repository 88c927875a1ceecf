#include "orca/comm/kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "comm/kernels_table.h"
#include "orca/core/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace orca::comm {
namespace {

#if defined(__x86_64__)
// Not a name that clang's __builtin_cpu_supports knows.
bool HasF16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool RunsAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
}

bool RunsAvx512() {
  return RunsAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

constexpr std::array kAllKernels = {&baseline::kKernels, &avx2::kKernels, &avx512::kKernels};

std::size_t CountRunnable() {
  if (!RunsAvx2()) return 1;
  return RunsAvx512() ? 3 : 2;
}
#else
constexpr std::array kAllKernels = {&baseline::kKernels};

std::size_t CountRunnable() { return 1; }
#endif

std::string JoinNames(std::span<const KernelTable* const> tables) {
  std::string names;
  for (const KernelTable* table : tables) {
    if (!names.empty()) names += ", ";
    names += table->isa;
  }
  return names;
}

const KernelTable& Chosen() {
  static const KernelTable& table = ChooseKernels(std::getenv("ORCA_ISA"));
  return table;
}

/// Copies one source to all destinations, by blocks that stay in the first-level cache between two
/// destinations.
void CopyToAll(const std::byte* src, std::span<std::byte* const> dsts, std::size_t bytes) {
  constexpr std::size_t kBlock = 16384;
  const std::size_t step = dsts.size() > 1 ? kBlock : bytes;
  for (std::size_t begin = 0; begin < bytes; begin += step) {
    const std::size_t size = std::min(step, bytes - begin);
    for (std::byte* dst : dsts) {
      if (dst != src) std::memcpy(dst + begin, src + begin, size);
    }
  }
}

void Check(const Reduction& reduction, std::size_t nsrc) {
  if (!Supports(reduction.op, reduction.dtype)) {
    throw Error(Code::kInvalidArgument, std::string(Name(reduction.op)) + " is not defined for " +
                                            Name(reduction.dtype) +
                                            "; reduce with another operator or convert the data");
  }
  if (nsrc == 0) {
    throw Error(Code::kInvalidArgument,
                "a reduction of 0 sources has no result; give at least one");
  }
  if (reduction.op == ReduceOp::kPreMulSum && reduction.factors.size() != nsrc) {
    throw Error(Code::kInvalidArgument, std::to_string(reduction.factors.size()) + " factors for " +
                                            std::to_string(nsrc) + " sources; give one a source");
  }
}

}  // namespace

std::span<const KernelTable* const> RunnableKernels() {
  static const std::size_t count = CountRunnable();
  return std::span(kAllKernels).first(count);
}

const KernelTable& ChooseKernels(const char* wanted) {
  const auto runnable = RunnableKernels();
  if (wanted == nullptr || *wanted == '\0') return *runnable.back();
  for (const KernelTable* table : runnable) {
    if (std::string_view(table->isa) == wanted) return *table;
  }
  throw Error(Code::kInvalidArgument,
              "ORCA_ISA '" + std::string(wanted) +
                  "' is not an instruction set that this processor runs; give one of " +
                  JoinNames(runnable));
}

void ReduceWith(const KernelTable& table, const Reduction& reduction,
                std::span<const std::byte* const> srcs, std::span<std::byte* const> dsts,
                std::size_t count) {
  Check(reduction, srcs.size());
  const bool divides = reduction.op == ReduceOp::kAverage && reduction.divisor > 1;
  const bool multiplies = reduction.op == ReduceOp::kPreMulSum;
  const std::size_t bytes = count * SizeOf(reduction.dtype);
  if (srcs.size() == 1 && !divides && !multiplies && reduction.dtype != DType::kBool) {
    CopyToAll(srcs[0], dsts, bytes);
    return;
  }
  const ReduceOp op =
      reduction.op == ReduceOp::kAverage && !divides ? ReduceOp::kSum : reduction.op;
  const double divisor = divides ? static_cast<double>(reduction.divisor) : 1.0;
  const KernelCall call = {
      .srcs = srcs.data(),
      .nsrc = srcs.size(),
      .dsts = dsts.data(),
      .ndst = dsts.size(),
      .bytes = bytes,
      .factors = multiplies ? reduction.factors.data() : nullptr,
      .divisor = divisor,
      .reciprocal = std::has_single_bit(reduction.divisor) ? 1.0 / divisor : 0.0};
  table.reduce[static_cast<std::size_t>(reduction.dtype)][static_cast<std::size_t>(op)](call);
}

void Reduce(const Reduction& reduction, std::span<const std::byte* const> srcs,
            std::span<std::byte* const> dsts, std::size_t count) {
  ReduceWith(Chosen(), reduction, srcs, dsts, count);
}

const char* KernelIsa() { return Chosen().isa; }

void PackBFloat16(const float* from, std::uint16_t* to, std::size_t count) {
  Chosen().pack_bfloat16(from, to, count);
}

void UnpackBFloat16(const std::uint16_t* from, float* to, std::size_t count) {
  Chosen().unpack_bfloat16(from, to, count);
}

}  // namespace orca::comm
