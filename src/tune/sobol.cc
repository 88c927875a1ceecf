#include "tune/sobol.h"

#include <bit>
#include <iterator>

#include "orca/core/error.h"
#include "tune/philox.h"

namespace orca::tune {
namespace {

constexpr std::uint16_t kJoeKuo[] = {
#include "tune/joe_kuo.inc"
};

std::uint32_t Reverse(std::uint32_t bits) {
  bits = (bits & 0x55555555) << 1 | (bits >> 1 & 0x55555555);
  bits = (bits & 0x33333333) << 2 | (bits >> 2 & 0x33333333);
  bits = (bits & 0x0F0F0F0F) << 4 | (bits >> 4 & 0x0F0F0F0F);
  return __builtin_bswap32(bits);
}

// In the reversed word each bit depends on those below it only, which is what a nested permutation
// of intervals is (Laine and Karras, 2011; the constants are Vegdahl's).
std::uint32_t Scramble(std::uint32_t bits, std::uint32_t seed) {
  bits = Reverse(bits);
  bits ^= bits * 0x3D20ADEA;
  bits += seed;
  bits *= (seed >> 16) | 1;
  bits ^= bits * 0x05526C56;
  bits ^= bits * 0x53A22864;
  return Reverse(bits);
}

}  // namespace

Sobol::Sobol(std::size_t dimensions, std::uint64_t seed) : scrambles_(seed != 0) {
  if (dimensions > kSobolDimensions) {
    throw Error(Code::kInternal, "more dimensions than direction numbers");
  }
  directions_.resize(dimensions);
  const std::uint16_t* next = kJoeKuo;
  for (std::size_t d = 0; d < dimensions; ++d) {
    std::array<std::uint32_t, 32>& v = directions_[d];
    Stream random(seed, static_cast<std::int64_t>(d), HashName("sobol"));
    seeds_.push_back(static_cast<std::uint32_t>(random.Bits()));
    if (d == 0) {
      for (std::size_t i = 0; i < 32; ++i) v[i] = std::uint32_t{1} << (31 - i);
      continue;
    }
    const std::uint32_t polynomial = *next++;
    const auto degree = static_cast<std::size_t>(std::bit_width(polynomial)) - 1;
    for (std::size_t i = 0; i < degree; ++i) v[i] = std::uint32_t{*next++} << (31 - i);
    for (std::size_t i = degree; i < 32; ++i) {
      v[i] = v[i - degree] ^ (v[i - degree] >> degree);
      for (std::size_t k = 1; k < degree; ++k) {
        if ((polynomial >> (degree - k) & 1) != 0) v[i] ^= v[i - k];
      }
    }
  }
}

double Sobol::At(std::uint64_t index, std::size_t dimension) const {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < 32 && index >> i != 0; ++i) {
    if ((index >> i & 1) != 0) bits ^= directions_[dimension][i];
  }
  if (scrambles_) bits = Scramble(bits, seeds_[dimension]);
  return (bits + 0.5) * 0x1p-32;
}

}  // namespace orca::tune
