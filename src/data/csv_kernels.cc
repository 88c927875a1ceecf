#include "data/csv_kernels.h"

namespace orca::data {

namespace {

const CsvKernels& Choose() {
#if defined(__x86_64__)
  const bool has_bits = __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt");
  if (has_bits && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return kCsvKernelsAvx512;
  }
  if (has_bits && __builtin_cpu_supports("avx2")) return kCsvKernelsAvx2;
#endif
  return kCsvKernelsBaseline;
}

}  // namespace

const CsvKernels& FindCsvKernels() {
  static const CsvKernels& kernels = Choose();
  return kernels;
}

}  // namespace orca::data
