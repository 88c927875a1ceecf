// The header before every piece of bulk data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "orca/core/export.h"

namespace orca::net {

inline constexpr std::size_t kFrameHeaderBytes = 64;
inline constexpr std::uint32_t kMaxFramePayload = 1024 * 1024;

/// Says which call of which group a piece of data belongs to, and where in it. The checksum finds
/// accidents, not forgers: the connection itself is authenticated.
///
/// On the wire, little endian: magic u32, CRC32C of what follows u32, then the fields in the order
/// below.
struct FrameHeader {
  std::uint64_t message = 0;  ///< Number of the message on this pair of ranks, or a tag.
  std::uint64_t sequence = 0;
  std::uint8_t op = 0;
  std::uint8_t dtype = 0;
  std::uint8_t reduce = 0;
  std::uint8_t kind = 0;
  std::int32_t root = 0;
  std::uint64_t count = 0;
  std::uint64_t offset = 0;
  std::uint32_t length = 0;       ///< Bytes that follow the header; at most kMaxFramePayload.
  std::uint32_t payload_crc = 0;  ///< CRC32C of those bytes.
  std::uint64_t total = 0;        ///< Bytes of the whole message; `offset` counts in it.
  bool operator==(const FrameHeader&) const = default;
};

/// Writes `header` to `wire`. Throws kInvalidArgument when its length is above the limit.
ORCA_API void Encode(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> wire);
/// Reads it back. Throws kPeerLost when it is corrupt: after that nobody knows where the next frame
/// begins.
ORCA_API FrameHeader Decode(std::span<const std::byte, kFrameHeaderBytes> wire);

}  // namespace orca::net
