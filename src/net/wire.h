// Integers on the wire: little endian, whatever the machine.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace orca::net {

/// Returns `value` with its bytes in the order of the wire (and back).
template <typename T>
constexpr T LittleEndian(T value) {
  static_assert(std::is_unsigned_v<T>);
  if constexpr (std::endian::native == std::endian::little || sizeof(T) == 1) {
    return value;
  } else {
    T swapped = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      swapped = static_cast<T>(swapped << 8 | ((value >> (8 * i)) & 0xff));
    }
    return swapped;
  }
}

/// Writes `value` at `to`, which need not be aligned.
template <typename T>
void StoreLittle(std::byte* to, T value) {
  const T wire = LittleEndian(value);
  std::memcpy(to, &wire, sizeof(T));
}

template <typename T>
T LoadLittle(const std::byte* from) {
  T wire;
  std::memcpy(&wire, from, sizeof(T));
  return LittleEndian(wire);
}

}  // namespace orca::net
