// Every way to compute a CRC-32C against the definition, bit by bit.
#include "orca/core/crc32c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "core/crc32c_variants.h"

namespace orca {
namespace {

using Random = std::mt19937_64;

std::uint32_t BitByBit(std::span<const std::byte> data, std::uint32_t crc = 0) {
  std::uint32_t state = ~crc;
  for (const std::byte byte : data) {
    state ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return ~state;
}

std::uint32_t With(const Crc32cVariant& variant, std::span<const std::byte> data,
                   std::uint32_t crc = 0) {
  return ~variant.update(~crc, data.data(), data.size());
}

std::vector<std::byte> RandomBytes(std::size_t size, Random& random) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Crc32cTest, PublishedValuesComeOut) {
  // RFC 3720, B.4, and the check value of the catalogue of parametrised CRC algorithms.
  std::vector<std::byte> ascending(32);
  for (std::size_t i = 0; i < 32; ++i) ascending[i] = static_cast<std::byte>(i);
  const std::vector<std::byte> descending(ascending.rbegin(), ascending.rend());
  std::vector<std::byte> command(48);
  for (const auto& [index, value] : {std::pair{0, 0x01},
                                     {1, 0xc0},
                                     {16, 0x14},
                                     {22, 0x04},
                                     {27, 0x14},
                                     {31, 0x18},
                                     {32, 0x28},
                                     {40, 0x02}}) {
    command[static_cast<std::size_t>(index)] = static_cast<std::byte>(value);
  }
  const std::string_view digits = "123456789";
  for (const Crc32cVariant& variant : RunnableCrc32cVariants()) {
    SCOPED_TRACE(variant.name);
    EXPECT_EQ(With(variant, std::vector<std::byte>(32, std::byte{0})), 0x8a9136aau);
    EXPECT_EQ(With(variant, std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43u);
    EXPECT_EQ(With(variant, ascending), 0x46dd794eu);
    EXPECT_EQ(With(variant, descending), 0x113fdb5cu);
    EXPECT_EQ(With(variant, command), 0xd9963a56u);
    EXPECT_EQ(With(variant, std::as_bytes(std::span(digits))), 0xe3069283u);
  }
}

TEST(Crc32cTest, EverySizeAndStartGivesTheValueOfTheDefinition) {
  Random random(1);
  for (std::size_t size = 0; size <= 1100; ++size) {
    const std::size_t start = size % 17;
    const std::vector<std::byte> bytes = RandomBytes(start + size, random);
    const auto data = std::span(bytes).subspan(start);
    const std::uint32_t wanted = BitByBit(data);
    for (const Crc32cVariant& variant : RunnableCrc32cVariants()) {
      ASSERT_EQ(With(variant, data), wanted) << variant.name << ", size " << size;
    }
  }
}

TEST(Crc32cTest, EveryStartOfOneBufferGivesTheValueOfTheDefinition) {
  Random random(2);
  const std::vector<std::byte> bytes = RandomBytes(700, random);
  for (std::size_t start = 0; start < 130; ++start) {
    const auto data = std::span(bytes).subspan(start);
    for (const Crc32cVariant& variant : RunnableCrc32cVariants()) {
      ASSERT_EQ(With(variant, data), BitByBit(data)) << variant.name << ", start " << start;
    }
  }
}

TEST(Crc32cTest, LongBuffersGiveTheValueOfTheDefinition) {
  Random random(3);
  for (const std::size_t size : {6143, 6144, 6145, 12288, 20000, 65536, 262144 + 77}) {
    const std::vector<std::byte> data = RandomBytes(size, random);
    const std::uint32_t wanted = BitByBit(data);
    for (const Crc32cVariant& variant : RunnableCrc32cVariants()) {
      EXPECT_EQ(With(variant, data), wanted) << variant.name << ", size " << size;
    }
  }
}

TEST(Crc32cTest, PiecesGiveTheValueOfTheWhole) {
  Random random(4);
  for (int round = 0; round < 200; ++round) {
    const std::vector<std::byte> bytes = RandomBytes(random() % 20000, random);
    const std::uint32_t wanted = BitByBit(bytes);
    for (const Crc32cVariant& variant : RunnableCrc32cVariants()) {
      std::uint32_t crc = 0;
      for (std::span<const std::byte> left = bytes; !left.empty();) {
        const std::size_t size = std::min<std::size_t>(left.size(), random() % 3000);
        crc = With(variant, left.first(size), crc);
        left = left.subspan(size);
      }
      ASSERT_EQ(crc, wanted) << variant.name << ", size " << bytes.size();
    }
  }
}

TEST(Crc32cTest, ThePublicFunctionAgreesAndContinues) {
  Random random(5);
  const std::vector<std::byte> bytes = RandomBytes(5000, random);
  EXPECT_EQ(Crc32c(nullptr, 0), 0u);
  EXPECT_EQ(Crc32c(bytes.data(), bytes.size()), BitByBit(bytes));
  EXPECT_EQ(Crc32c(bytes.data() + 1234, 5000 - 1234, Crc32c(bytes.data(), 1234)), BitByBit(bytes));
}

TEST(Crc32cTest, AFlippedBitChangesTheValue) {
  Random random(6);
  std::vector<std::byte> bytes = RandomBytes(777, random);
  const std::uint32_t before = Crc32c(bytes.data(), bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{1} << (i % 8);
    EXPECT_NE(Crc32c(bytes.data(), bytes.size()), before) << "byte " << i;
    bytes[i] ^= std::byte{1} << (i % 8);
  }
}

}  // namespace
}  // namespace orca
