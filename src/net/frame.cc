#include "orca/net/frame.h"

#include <fmt/format.h>

#include "net/wire.h"
#include "orca/core/crc32c.h"
#include "orca/core/error.h"

namespace orca::net {
namespace {

constexpr std::uint32_t kMagic = 0x4443524f;  // "ORCD"
constexpr std::size_t kCrcAt = 4;
constexpr std::size_t kMessageAt = 8;
constexpr std::size_t kSequenceAt = 16;
constexpr std::size_t kOpAt = 24;
constexpr std::size_t kDTypeAt = 25;
constexpr std::size_t kReduceAt = 26;
constexpr std::size_t kKindAt = 27;
constexpr std::size_t kRootAt = 28;
constexpr std::size_t kCountAt = 32;
constexpr std::size_t kOffsetAt = 40;
constexpr std::size_t kLengthAt = 48;
constexpr std::size_t kPayloadCrcAt = 52;
constexpr std::size_t kTotalAt = 56;
static_assert(kTotalAt + 8 == kFrameHeaderBytes);

// What the checksum covers: all after itself. The magic is compared.
std::uint32_t HeaderCrc(const std::byte* wire) {
  return Crc32c(wire + kMessageAt, kFrameHeaderBytes - kMessageAt);
}

[[noreturn]] void ThrowCorrupt(const std::string& why) {
  throw Error(
      Code::kPeerLost,
      fmt::format("a link brought a corrupt frame header ({}); the network or a host's memory "
                  "damages data",
                  why));
}

}  // namespace

void Encode(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> wire) {
  if (header.length > kMaxFramePayload) {
    throw Error(Code::kInvalidArgument, fmt::format("a frame of {} bytes is above the limit of {}",
                                                    header.length, kMaxFramePayload));
  }
  std::byte* const to = wire.data();
  StoreLittle(to, kMagic);
  StoreLittle(to + kMessageAt, header.message);
  StoreLittle(to + kSequenceAt, header.sequence);
  StoreLittle(to + kOpAt, header.op);
  StoreLittle(to + kDTypeAt, header.dtype);
  StoreLittle(to + kReduceAt, header.reduce);
  StoreLittle(to + kKindAt, header.kind);
  StoreLittle(to + kRootAt, static_cast<std::uint32_t>(header.root));
  StoreLittle(to + kCountAt, header.count);
  StoreLittle(to + kOffsetAt, header.offset);
  StoreLittle(to + kLengthAt, header.length);
  StoreLittle(to + kPayloadCrcAt, header.payload_crc);
  StoreLittle(to + kTotalAt, header.total);
  StoreLittle(to + kCrcAt, HeaderCrc(to));
}

FrameHeader Decode(std::span<const std::byte, kFrameHeaderBytes> wire) {
  const std::byte* const from = wire.data();
  const auto magic = LoadLittle<std::uint32_t>(from);
  if (magic != kMagic)
    ThrowCorrupt(fmt::format("it begins with {:#010x}, not {:#010x}", magic, kMagic));
  const auto crc = LoadLittle<std::uint32_t>(from + kCrcAt);
  if (const std::uint32_t actual = HeaderCrc(from); crc != actual) {
    ThrowCorrupt(fmt::format("its checksum is {:#010x}, it says {:#010x}", actual, crc));
  }
  FrameHeader header;
  header.length = LoadLittle<std::uint32_t>(from + kLengthAt);
  if (header.length > kMaxFramePayload) {
    ThrowCorrupt(fmt::format("it announces {} bytes, above the limit of {}", header.length,
                             kMaxFramePayload));
  }
  header.message = LoadLittle<std::uint64_t>(from + kMessageAt);
  header.sequence = LoadLittle<std::uint64_t>(from + kSequenceAt);
  header.op = LoadLittle<std::uint8_t>(from + kOpAt);
  header.dtype = LoadLittle<std::uint8_t>(from + kDTypeAt);
  header.reduce = LoadLittle<std::uint8_t>(from + kReduceAt);
  header.kind = LoadLittle<std::uint8_t>(from + kKindAt);
  header.root = static_cast<std::int32_t>(LoadLittle<std::uint32_t>(from + kRootAt));
  header.count = LoadLittle<std::uint64_t>(from + kCountAt);
  header.offset = LoadLittle<std::uint64_t>(from + kOffsetAt);
  header.total = LoadLittle<std::uint64_t>(from + kTotalAt);
  header.payload_crc = LoadLittle<std::uint32_t>(from + kPayloadCrcAt);
  return header;
}

}  // namespace orca::net
