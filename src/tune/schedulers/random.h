// Random numbers by counter.
#pragma once

#include <cstddef>
#include <cstdint>

namespace orca::tune {

/// Draws that depend on the seed and on what they are for, not on what was drawn before.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t trial, std::uint64_t round)
      : key_(Mix(Mix(Mix(seed) ^ trial) ^ round)) {}

  std::uint64_t Bits() { return Mix(key_ + 0x9E3779B97F4A7C15U * ++count_); }
  /// In [0, 1).
  double Uniform() { return static_cast<double>(Bits() >> 11U) * 0x1p-53; }
  /// In [0, size).
  std::size_t Index(std::size_t size) {
    return static_cast<std::size_t>(Uniform() * static_cast<double>(size));
  }

 private:
  // The last step of SplitMix64.
  static std::uint64_t Mix(std::uint64_t bits) {
    bits = (bits ^ (bits >> 30U)) * 0xBF58476D1CE4E5B9U;
    bits = (bits ^ (bits >> 27U)) * 0x94D049BB133111EBU;
    return bits ^ (bits >> 31U);
  }

  std::uint64_t key_;
  std::uint64_t count_ = 0;
};

}  // namespace orca::tune
