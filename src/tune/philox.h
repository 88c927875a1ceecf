// Random numbers that are a function of what they are for, not of the order in which they are
// drawn.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace orca::tune {

/// Ten rounds of Philox 4x32 (Salmon et al., 2011): 128 bits of `counter` under `key`.
constexpr std::array<std::uint32_t, 4> Philox(std::array<std::uint32_t, 4> counter,
                                              std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t second = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(second),
               static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(first)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

/// A number for a name, the same in every build (FNV-1a).
constexpr std::uint64_t HashName(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const char letter : name) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3;
  }
  return hash;
}

/// The random numbers of one purpose in one trial of one study.
class Stream {
 public:
  Stream(std::uint64_t seed, std::int64_t trial, std::uint64_t purpose)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        trial_(static_cast<std::uint32_t>(trial)),
        purpose_(purpose ^ (static_cast<std::uint64_t>(trial) >> 32)) {}

  std::uint64_t Bits() {
    const std::array<std::uint32_t, 4> block =
        Philox({draws_++, trial_, static_cast<std::uint32_t>(purpose_),
                static_cast<std::uint32_t>(purpose_ >> 32)},
               key_);
    return std::uint64_t{block[0]} << 32 | block[1];
  }

  /// Of 53 bits, in [0, 1).
  double Uniform() { return static_cast<double>(Bits() >> 11) * 0x1p-53; }

  /// Skips to the draw with this number.
  void Seek(std::uint32_t draw) { draws_ = draw; }

 private:
  std::array<std::uint32_t, 2> key_;
  std::uint32_t trial_;
  std::uint64_t purpose_;
  std::uint32_t draws_ = 0;
};

}  // namespace orca::tune
