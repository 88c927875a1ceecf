#include "learn/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace orca::learn {
namespace {

constexpr std::uint8_t kPositiveInfinity = 1;
constexpr std::uint8_t kNegativeInfinity = 2;
constexpr std::uint8_t kNaN = 4;
constexpr std::uint8_t kAllSpecials = 7;

constexpr std::uint64_t kLimbMask = 0xffffffffU;
// An addition changes a limb by less than 2^34.
constexpr std::uint32_t kAdditionsBeforeCarry = 1U << 28;
// No sum of real data comes near it: the last limb counts multiples of 2^1070.
constexpr std::int64_t kLastLimbLimit = std::int64_t{1} << 31;

constexpr int kSmallestExponent = -1074;
constexpr int kMantissaBits = 52;
constexpr unsigned kSpecialExponent = 0x7ff;  // of infinities and NaNs

// So many mantissas of 53 bits are below 2^63 together.
constexpr std::size_t kChunkValues = 1023;
// Below it, a chunk costs more than it saves.
constexpr std::size_t kFewValues = 128;

struct Parts {
  bool negative;
  unsigned exponent;
  std::uint64_t mantissa;
};

Parts Split(double value) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  Parts parts{.negative = (bits >> 63) != 0,
              .exponent = static_cast<unsigned>((bits >> kMantissaBits) & kSpecialExponent),
              .mantissa = bits & ((std::uint64_t{1} << kMantissaBits) - 1)};
  if (parts.exponent != 0 && parts.exponent != kSpecialExponent)
    parts.mantissa |= std::uint64_t{1} << kMantissaBits;
  return parts;
}

// Of a mantissa's lowest bit, counted from the lowest of all doubles.
unsigned Position(unsigned exponent) { return exponent == 0 ? 0 : exponent - 1; }

}  // namespace

void ExactSum::Add(double value) {
  const Parts parts = Split(value);
  if (parts.exponent == kSpecialExponent) {
    specials_ |= parts.mantissa != 0 ? kNaN
                 : parts.negative    ? kNegativeInfinity
                                     : kPositiveInfinity;
    return;
  }
  AddInteger(parts.mantissa, parts.negative, Position(parts.exponent));
}

void ExactSum::AddAll(std::span<const double> values) {
  while (values.size() >= kFewValues) {
    AddChunk(values.first(std::min(values.size(), kChunkValues)));
    values = values.subspan(std::min(values.size(), kChunkValues));
  }
  for (const double value : values) Add(value);
}

// Numbers of one exponent add up as one integer first.
void ExactSum::AddChunk(std::span<const double> values) {
  std::array<std::int64_t, kSpecialExponent> sums{};
  unsigned lowest = kSpecialExponent;
  unsigned highest = 0;
  for (const double value : values) {
    const Parts parts = Split(value);
    if (parts.exponent == kSpecialExponent) {
      Add(value);
      continue;
    }
    const auto mantissa = static_cast<std::int64_t>(parts.mantissa);
    sums[parts.exponent] += parts.negative ? -mantissa : mantissa;
    lowest = std::min(lowest, parts.exponent);
    highest = std::max(highest, parts.exponent);
  }
  for (unsigned exponent = lowest; exponent <= highest; ++exponent) {
    const std::int64_t sum = sums[exponent];
    if (sum != 0)
      AddInteger(static_cast<std::uint64_t>(std::abs(sum)), sum < 0, Position(exponent));
  }
}

void ExactSum::AddInteger(std::uint64_t size, bool negative, unsigned position) {
  const std::size_t limb = position / 32;
  const unsigned shift = position % 32;
  const std::uint64_t low = (size & kLimbMask) << shift;
  const std::uint64_t high = (size >> 32) << shift;
  const std::int64_t parts[3] = {static_cast<std::int64_t>(low & kLimbMask),
                                 static_cast<std::int64_t>((low >> 32) + (high & kLimbMask)),
                                 static_cast<std::int64_t>(high >> 32)};
  for (std::size_t i = 0; i < 3; ++i) limbs_[limb + i] += negative ? -parts[i] : parts[i];
  if (++additions_ == kAdditionsBeforeCarry) Carry();
}

void ExactSum::AddProduct(double a, double b) {
  const double product = a * b;
  Add(product);
  if (std::isfinite(product)) Add(std::fma(a, b, -product));
}

void ExactSum::Add(const ExactSum& other) {
  ExactSum carried = other;
  carried.Carry();
  Carry();
  for (std::size_t i = 0; i < kLimbs; ++i) limbs_[i] += carried.limbs_[i];
  specials_ |= carried.specials_;
  Carry();
}

void ExactSum::Carry() {
  additions_ = 0;
  std::int64_t carry = 0;
  for (std::size_t i = 0; i + 1 < kLimbs; ++i) {
    const std::int64_t limb = limbs_[i] + carry;
    carry = limb >> 32;  // rounds down, so that what stays is not negative
    limbs_[i] = limb & static_cast<std::int64_t>(kLimbMask);
  }
  limbs_.back() += carry;
  if (limbs_.back() >= kLastLimbLimit || limbs_.back() <= -kLastLimbLimit) {
    specials_ |= limbs_.back() > 0 ? kPositiveInfinity : kNegativeInfinity;
    limbs_.back() = 0;
  }
}

double ExactSum::Value() const {
  ExactSum size = *this;
  size.Carry();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (size.specials_ == kPositiveInfinity) return kInfinity;
  if (size.specials_ == kNegativeInfinity) return -kInfinity;
  if (size.specials_ != 0) return std::numeric_limits<double>::quiet_NaN();
  const bool negative = size.limbs_.back() < 0;
  if (negative) {
    for (std::int64_t& limb : size.limbs_) limb = -limb;
    size.Carry();
  }
  std::size_t first = kLimbs;  // of the limbs that are not 0, from the top
  while (first > 0 && size.limbs_[first - 1] == 0) --first;
  if (first == 0) return 0.0;
  const auto limb = [&](std::size_t below) {  // counted from the first one, downwards
    return below < first ? static_cast<std::uint64_t>(size.limbs_[first - 1 - below]) : 0;
  };
  // The highest 64 bits, and whether anything is below them.
  const int zeros = std::countl_zero(limb(0)) - 32;
  const std::uint64_t next = limb(2) << zeros;
  const std::uint64_t top = (limb(0) << 32 | limb(1)) << zeros | next >> 32;
  bool more = (next & kLimbMask) != 0;
  for (std::size_t below = 3; below < first && !more; ++below) more = limb(below) != 0;
  // To the nearest double; halfway, to the even one.
  constexpr int kDropped = 63 - kMantissaBits;
  constexpr std::uint64_t kHalf = std::uint64_t{1} << (kDropped - 1);
  const std::uint64_t dropped = top & (2 * kHalf - 1);
  std::uint64_t mantissa = top >> kDropped;
  if (dropped > kHalf || (dropped == kHalf && (more || mantissa % 2 != 0))) ++mantissa;
  const int highest_bit = static_cast<int>(32 * first) - 1 - zeros;
  const double rounded =
      std::ldexp(static_cast<double>(mantissa), highest_bit - kMantissaBits + kSmallestExponent);
  return negative ? -rounded : rounded;
}

void ExactSum::Write(StateWriter& writer) const {
  ExactSum carried = *this;
  carried.Carry();
  writer.Put<std::uint64_t>(carried.specials_);
  for (const std::int64_t limb : carried.limbs_) writer.Put(limb);
}

ExactSum ExactSum::Read(StateReader& reader) {
  ExactSum sum;
  const auto specials = reader.Get<std::uint64_t>();
  if (specials > kAllSpecials) reader.Refuse("a sum has unknown marks");
  sum.specials_ = static_cast<std::uint8_t>(specials);
  for (std::size_t i = 0; i < kLimbs; ++i) {
    const auto limb = reader.Get<std::int64_t>();
    const bool last = i + 1 == kLimbs;
    if (limb < (last ? 1 - kLastLimbLimit : 0) ||
        limb >= (last ? kLastLimbLimit : static_cast<std::int64_t>(kLimbMask) + 1))
      reader.Refuse("a sum has a part out of range");
    sum.limbs_[i] = limb;
  }
  return sum;
}

}  // namespace orca::learn
