// The ways to compute a CRC-32C. Internal to crc32c*.cc and their test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace orca {

/// One way. `update` takes and returns the register, which is the checksum with all bits inverted.
struct Crc32cVariant {
  const char* name;
  std::uint32_t (*update)(std::uint32_t state, const std::byte* data, std::size_t size);
};

/// Tables only, on any processor.
std::uint32_t UpdateCrc32cPortable(std::uint32_t state, const std::byte* data, std::size_t size);
#if defined(__x86_64__)
/// Three interleaved streams of the crc32 instruction, joined by carry-less multiplication.
std::uint32_t UpdateCrc32cSse42(std::uint32_t state, const std::byte* data, std::size_t size);
/// Folds 256 bytes at a time with carry-less multiplication of 512-bit vectors.
std::uint32_t UpdateCrc32cAvx512(std::uint32_t state, const std::byte* data, std::size_t size);
#endif

/// The variants that this processor can run, the slowest first.
std::span<const Crc32cVariant> RunnableCrc32cVariants();

}  // namespace orca
