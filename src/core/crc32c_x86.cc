// CRC-32C with the instructions of x86-64. Polynomials over GF(2) are kept reflected: the highest
// bit of a word is the coefficient of x^0. A carry-less product of two reflected words is therefore
// one power of x too high.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#include "core/crc32c_variants.h"

#define ORCA_SSE42 __attribute__((target("sse4.2,pclmul")))
#define ORCA_AVX512 __attribute__((target("sse4.2,pclmul,avx512f,avx512vl,vpclmulqdq")))

namespace orca {
namespace {

/// x^n modulo the polynomial, in 32 bits.
constexpr std::uint32_t PowerOfX(std::size_t n) {
  std::uint32_t power = 0x80000000u;
  for (; n > 0; --n) power = (power >> 1) ^ ((power & 1) != 0 ? 0x82f63b78u : 0);
  return power;
}

ORCA_SSE42 inline std::uint64_t LoadWord(const std::byte* from) {
  std::uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

ORCA_SSE42 std::uint32_t UpdateSerially(std::uint32_t state, const std::byte* data,
                                        std::size_t size) {
  std::uint64_t wide = state;
  for (; size >= 8; data += 8, size -= 8) wide = _mm_crc32_u64(wide, LoadWord(data));
  auto narrow = static_cast<std::uint32_t>(wide);
  if ((size & 4) != 0) {
    std::uint32_t word;
    std::memcpy(&word, data, sizeof(word));
    narrow = _mm_crc32_u32(narrow, word);
    data += 4;
  }
  for (size &= 3; size > 0; ++data, --size) {
    narrow = _mm_crc32_u8(narrow, static_cast<std::uint8_t>(*data));
  }
  return narrow;
}

/// The register after `kBytes` zero bytes. The crc32 instruction reduces the product and multiplies
/// it by x^32.
template <std::size_t kBytes>
ORCA_SSE42 inline std::uint32_t SkipZeros(std::uint32_t state) {
  constexpr std::uint32_t kFactor = PowerOfX(8 * kBytes - 33);
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128(static_cast<int>(state)),
                                               _mm_cvtsi32_si128(static_cast<int>(kFactor)), 0);
  return static_cast<std::uint32_t>(
      _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(product))));
}

/// Takes three pieces of `kPiece` bytes at a time: the instruction needs three cycles, but one can
/// start every cycle.
template <std::size_t kPiece>
ORCA_SSE42 inline void UpdateByThree(std::uint32_t& state, const std::byte*& data,
                                     std::size_t& size) {
  for (; size >= 3 * kPiece; data += 3 * kPiece, size -= 3 * kPiece) {
    std::uint64_t first = state;
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < kPiece; i += 8) {
      first = _mm_crc32_u64(first, LoadWord(data + i));
      second = _mm_crc32_u64(second, LoadWord(data + kPiece + i));
      third = _mm_crc32_u64(third, LoadWord(data + 2 * kPiece + i));
    }
    state = SkipZeros<2 * kPiece>(static_cast<std::uint32_t>(first)) ^
            SkipZeros<kPiece>(static_cast<std::uint32_t>(second)) ^
            static_cast<std::uint32_t>(third);
  }
}

/// x^n modulo the polynomial, in 64 bits.
constexpr long long WidePowerOfX(std::size_t n) {
  const std::uint64_t power = std::uint64_t{PowerOfX(n)} << 32;
  return static_cast<long long>(power);
}

/// What moves both halves of a 128-bit lane `kBits` further: the lower one stands for x^64 more.
template <std::size_t kBits>
struct FoldBy {
  static constexpr long long kLower = WidePowerOfX(kBits + 63);
  static constexpr long long kUpper = WidePowerOfX(kBits - 1);
};

/// `sum` times x^kBits, plus `next`.
template <std::size_t kBits>
ORCA_AVX512 inline __m128i Fold(__m128i sum, __m128i next) {
  const __m128i factors = _mm_set_epi64x(FoldBy<kBits>::kUpper, FoldBy<kBits>::kLower);
  return _mm_ternarylogic_epi64(_mm_clmulepi64_si128(sum, factors, 0x00),
                                _mm_clmulepi64_si128(sum, factors, 0x11), next, 0x96);
}

/// The same in four lanes.
template <std::size_t kBits>
ORCA_AVX512 inline __m512i Fold(__m512i sum, __m512i next) {
  const __m512i factors = _mm512_set_epi64(
      FoldBy<kBits>::kUpper, FoldBy<kBits>::kLower, FoldBy<kBits>::kUpper, FoldBy<kBits>::kLower,
      FoldBy<kBits>::kUpper, FoldBy<kBits>::kLower, FoldBy<kBits>::kUpper, FoldBy<kBits>::kLower);
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, factors, 0x00),
                                   _mm512_clmulepi64_epi128(sum, factors, 0x11), next, 0x96);
}

ORCA_AVX512 inline __m512i LoadVector(const std::byte* from) { return _mm512_loadu_si512(from); }

/// Joins the four lanes.
ORCA_AVX512 inline __m128i FoldLanes(__m512i sum) {
  alignas(64) __m128i lanes[4];
  _mm512_store_si512(lanes, sum);
  return Fold<128>(Fold<128>(Fold<128>(lanes[0], lanes[1]), lanes[2]), lanes[3]);
}

}  // namespace

ORCA_SSE42 std::uint32_t UpdateCrc32cSse42(std::uint32_t state, const std::byte* data,
                                           std::size_t size) {
  UpdateByThree<2048>(state, data, size);
  UpdateByThree<128>(state, data, size);
  return UpdateSerially(state, data, size);
}

ORCA_AVX512 std::uint32_t UpdateCrc32cAvx512(std::uint32_t state, const std::byte* data,
                                             std::size_t size) {
  if (size < 256) return UpdateSerially(state, data, size);
  __m512i sums[4];
  for (std::size_t i = 0; i < 4; ++i) sums[i] = LoadVector(data + 64 * i);
  sums[0] = _mm512_xor_si512(sums[0], _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, state));
  for (data += 256, size -= 256; size >= 256; data += 256, size -= 256) {
    for (std::size_t i = 0; i < 4; ++i) sums[i] = Fold<2048>(sums[i], LoadVector(data + 64 * i));
  }
  __m512i sum = Fold<512>(Fold<512>(Fold<512>(sums[0], sums[1]), sums[2]), sums[3]);
  for (; size >= 64; data += 64, size -= 64) sum = Fold<512>(sum, LoadVector(data));
  const __m128i last = FoldLanes(sum);
  const auto lower = static_cast<std::uint64_t>(_mm_cvtsi128_si64(last));
  const auto upper = static_cast<std::uint64_t>(_mm_extract_epi64(last, 1));
  const auto joined = static_cast<std::uint32_t>(_mm_crc32_u64(_mm_crc32_u64(0, lower), upper));
  return UpdateSerially(joined, data, size);
}

}  // namespace orca

#endif
