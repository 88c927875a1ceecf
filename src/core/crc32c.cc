#include "orca/core/crc32c.h"

#include <array>

#include "core/crc32c_variants.h"

namespace orca {
namespace {

#if defined(__x86_64__)
constexpr std::array kAllVariants = {Crc32cVariant{"portable", UpdateCrc32cPortable},
                                     Crc32cVariant{"sse42", UpdateCrc32cSse42},
                                     Crc32cVariant{"avx512", UpdateCrc32cAvx512}};

std::size_t CountRunnable() {
  if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul")) return 1;
  const bool folds = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                     __builtin_cpu_supports("vpclmulqdq");
  return folds ? 3 : 2;
}
#else
constexpr std::array kAllVariants = {Crc32cVariant{"portable", UpdateCrc32cPortable}};

std::size_t CountRunnable() { return 1; }
#endif

}  // namespace

std::span<const Crc32cVariant> RunnableCrc32cVariants() {
  static const std::size_t count = CountRunnable();
  return std::span(kAllVariants).first(count);
}

std::uint32_t Crc32c(const void* data, std::size_t size, std::uint32_t crc) {
  static const auto update = RunnableCrc32cVariants().back().update;
  return ~update(~crc, static_cast<const std::byte*>(data), size);
}

}  // namespace orca
