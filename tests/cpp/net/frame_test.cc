#include "orca/net/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <random>

#include "net/expect_error.h"
#include "orca/core/crc32c.h"

namespace orca::net {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Wire = std::array<std::byte, kFrameHeaderBytes>;

FrameHeader RandomHeader(std::mt19937_64& random) {
  FrameHeader header;
  header.message = random();
  header.sequence = random();
  header.op = static_cast<std::uint8_t>(random());
  header.dtype = static_cast<std::uint8_t>(random());
  header.reduce = static_cast<std::uint8_t>(random());
  header.kind = static_cast<std::uint8_t>(random());
  header.root = static_cast<std::int32_t>(random());
  header.count = random();
  header.offset = random();
  header.length = static_cast<std::uint32_t>(random() % (kMaxFramePayload + 1));
  header.payload_crc = static_cast<std::uint32_t>(random());
  header.total = random();
  return header;
}

Wire Encoded(const FrameHeader& header) {
  Wire wire;
  Encode(header, wire);
  return wire;
}

// Puts a checksum on changed bytes that fits them, as a buggy sender would.
void Repair(Wire& wire) {
  const std::uint32_t crc = Crc32c(wire.data() + 8, wire.size() - 8);
  for (std::size_t i = 0; i < 4; ++i) wire[4 + i] = static_cast<std::byte>(crc >> (8 * i));
}

TEST(FrameTest, ComesBackAsItWas) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 10'000; ++i) {
    const FrameHeader header = RandomHeader(random);
    ASSERT_EQ(Decode(Encoded(header)), header);
  }
}

TEST(FrameTest, KeepsExtremeValues) {
  FrameHeader header;
  header.message = header.sequence = std::numeric_limits<std::uint64_t>::max();
  header.root = -1;
  header.length = kMaxFramePayload;
  EXPECT_EQ(Decode(Encoded(header)), header);
  EXPECT_EQ(Decode(Encoded(FrameHeader())), FrameHeader());
}

TEST(FrameTest, IsLittleEndianOnTheWire) {
  FrameHeader header;
  header.message = 0x0102030405060708;
  header.root = -2;
  header.length = 0x00010203;
  const Wire wire = Encoded(header);
  EXPECT_EQ(wire[0], std::byte{'O'});
  EXPECT_EQ(wire[8], std::byte{0x08});
  EXPECT_EQ(wire[15], std::byte{0x01});
  EXPECT_EQ(wire[28], std::byte{0xfe});
  EXPECT_EQ(wire[48], std::byte{0x03});
}

TEST(FrameTest, NoticesEveryFlippedBit) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 20; ++i) {
    const Wire wire = Encoded(RandomHeader(random));
    for (std::size_t bit = 0; bit < 8 * wire.size(); ++bit) {
      Wire changed = wire;
      changed[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      ASSERT_THAT(ErrorOf([&] { Decode(changed); }),
                  IsError(Code::kPeerLost, HasSubstr("corrupt frame header")));
    }
  }
}

TEST(FrameTest, NoticesEveryBurstOfThreeBytes) {
  std::mt19937_64 random(3);
  const Wire wire = Encoded(RandomHeader(random));
  for (std::size_t at = 0; at + 3 <= wire.size(); ++at) {
    Wire changed = wire;
    for (std::size_t i = 0; i < 3; ++i) changed[at + i] ^= std::byte{0xa5};
    ASSERT_EQ(ErrorOf([&] { Decode(changed); }).code(), Code::kPeerLost) << "at " << at;
  }
}

TEST(FrameTest, RefusesAPayloadAboveTheLimitOnBothSides) {
  FrameHeader header;
  header.length = kMaxFramePayload + 1;
  Wire wire;
  EXPECT_THAT(ErrorOf([&] { Encode(header, wire); }),
              IsError(Code::kInvalidArgument, AllOf(HasSubstr("1048577"), HasSubstr("1048576"))));
  wire = Encoded(FrameHeader());
  wire[51] = std::byte{0xff};
  Repair(wire);
  EXPECT_THAT(ErrorOf([&] { Decode(wire); }),
              IsError(Code::kPeerLost, HasSubstr("above the limit")));
}

TEST(FrameTest, RefusesAStreamThatIsOutOfStep) {
  EXPECT_THAT(ErrorOf([] { Decode(Wire{}); }),
              IsError(Code::kPeerLost, HasSubstr("corrupt frame header")));
}

}  // namespace
}  // namespace orca::net
