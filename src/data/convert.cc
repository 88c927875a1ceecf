#include "data/convert.h"

#include "data/convert_variants.h"

namespace orca::data {
namespace {

const Converters& Choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return kConvertersAvx512;
  }
  if (__builtin_cpu_supports("avx2")) return kConvertersAvx2;
#endif
  return kConvertersBaseline;
}

}  // namespace

ConvertFunction FindConversion(DType from) {
  static const Converters& converters = Choose();
  switch (from) {
    case DType::kUInt8:
      return converters.from_uint8;
    case DType::kFloat64:
      return converters.from_float64;
    default:
      return nullptr;
  }
}

}  // namespace orca::data
