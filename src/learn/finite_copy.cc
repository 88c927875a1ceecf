#include "learn/finite_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace orca::learn {
namespace {

// Small enough to be read again from the first-level cache.
constexpr std::size_t kBlock = 16384;

// A number is not finite when all bits of its exponent are set.
template <typename Word, Word kExponent>
bool AllFinite(const std::byte* data, std::size_t bytes) {
  Word found = 0;
  for (std::size_t at = 0; at + sizeof(Word) <= bytes; at += sizeof(Word)) {
    Word word = 0;
    std::memcpy(&word, data + at, sizeof(Word));
    found |= static_cast<Word>((word & kExponent) == kExponent ? 1 : 0);
  }
  return found == 0;
}

}  // namespace

bool AllFinite(DType dtype, std::span<const std::byte> data) {
  switch (dtype) {
    case DType::kFloat64:
      return AllFinite<std::uint64_t, 0x7ff0000000000000U>(data.data(), data.size());
    case DType::kFloat32:
      return AllFinite<std::uint32_t, 0x7f800000U>(data.data(), data.size());
    case DType::kFloat16:
      return AllFinite<std::uint16_t, 0x7c00U>(data.data(), data.size());
    case DType::kBFloat16:
      return AllFinite<std::uint16_t, 0x7f80U>(data.data(), data.size());
    default:
      return true;
  }
}

bool CopyAndCheck(DType dtype, const void* from, std::span<std::byte> to) {
  bool finite = true;
  const auto* const source = static_cast<const std::byte*>(from);
  for (std::size_t at = 0; at < to.size(); at += kBlock) {
    const std::size_t bytes = std::min(kBlock, to.size() - at);
    std::memcpy(to.data() + at, source + at, bytes);
    finite = AllFinite(dtype, to.subspan(at, bytes)) && finite;
  }
  return finite;
}

}  // namespace orca::learn
