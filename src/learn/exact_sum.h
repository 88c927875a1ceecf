// A sum of doubles without any rounding.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "learn/metric_state.h"

namespace orca::learn {

/// Adds doubles as integers of 2144 bits, so that no order of additions changes a bit of the sum.
///
/// An addition costs a few nanoseconds, less for many at a time. Infinities and NaNs are remembered
/// beside the integer.
class ExactSum {
 public:
  void Add(double value);
  void AddAll(std::span<const double> values);
  /// Adds a · b, whose lower half is not lost either.
  void AddProduct(double a, double b);
  void Add(const ExactSum& other);
  /// The double next to the sum.
  double Value() const;

  void Write(StateWriter& writer) const;
  static ExactSum Read(StateReader& reader);

 private:
  // Limb i holds multiples of 2^(32 i - 1074), the smallest double being 2^-1074. The largest has
  // its last bits in limb 65; two more are for as many additions as anybody can make.
  static constexpr std::size_t kLimbs = 68;

  void AddChunk(std::span<const double> values);
  // Adds size · 2^(position - 1074), with a sign; `size` is below 2^63.
  void AddInteger(std::uint64_t size, bool negative, unsigned position);
  // Brings every limb but the last below 2^32: the one way to write a number.
  void Carry();

  std::array<std::int64_t, kLimbs> limbs_{};
  std::uint32_t additions_ = 0;  // since the last Carry
  std::uint8_t specials_ = 0;    // bits of what was added beside numbers
};

}  // namespace orca::learn
