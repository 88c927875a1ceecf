#include <array>
#include <bit>
#include <cstring>

#include "core/crc32c_variants.h"

namespace orca {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // The bits reflected: the lowest is x^31.

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

/// Entry [k][b] is the register after the byte b and k zero bytes.
constexpr Tables MakeTables() {
  Tables tables = {};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = state;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

static_assert(std::endian::native == std::endian::little, "eight bytes are read as one number");

}  // namespace

std::uint32_t UpdateCrc32cPortable(std::uint32_t state, const std::byte* data, std::size_t size) {
  for (; size >= 8; data += 8, size -= 8) {
    std::uint64_t word;
    std::memcpy(&word, data, sizeof(word));
    word ^= state;
    state = 0;
    for (std::size_t i = 0; i < 8; ++i) state ^= kTables[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; size > 0; ++data, --size) {
    state = (state >> 8) ^ kTables[0][(state ^ static_cast<std::uint32_t>(*data)) & 0xff];
  }
  return state;
}

}  // namespace orca
