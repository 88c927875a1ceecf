#include "tune/loops.h"

#include <array>

namespace orca::tune {
namespace {

#if defined(__x86_64__)
constexpr std::array kSets = {&baseline::kLoops, &avx2::kLoops, &avx512::kLoops};
#else
constexpr std::array kSets = {&baseline::kLoops};
#endif

}  // namespace

std::span<const Loops* const> RunnableLoops() {
  std::size_t count = 1;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) count = 2;
  if (count == 2 && __builtin_cpu_supports("avx512f") != 0 &&
      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0) {
    count = 3;
  }
#endif
  return std::span(kSets).first(count);
}

const Loops& FastestLoops() {
  static const Loops& fastest = *RunnableLoops().back();
  return fastest;
}

}  // namespace orca::tune
