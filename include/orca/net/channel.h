// Control messages that nobody can forge, change, repeat or reorder on the way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "orca/core/export.h"
#include "orca/net/handshake.h"

namespace orca::net {

/// Seals and opens the control frames of one connection, without input or output: send what Seal
/// returns, feed what arrives, take the messages out.
///
/// A frame is a u32 length, the payload and an HMAC-SHA256 over (sequence number, length, payload)
/// with the key of its direction. The payload is readable on the wire. An error ends the channel:
/// close the connection. One thread may seal while another feeds; otherwise not thread-safe.
class ORCA_API SealedChannel {
 public:
  enum class Side { kClient, kServer };
  static constexpr std::size_t kDefaultLimit = 64 * 1024;
  static constexpr std::size_t kOverhead = 4 + 32;  ///< Bytes that a frame adds to its payload.

  /// Neither direction takes payloads longer than `limit`.
  SealedChannel(const SessionKeys& keys, Side side, std::size_t limit = kDefaultLimit);
  // A copy would use sequence numbers twice.
  SealedChannel(SealedChannel&&) = default;
  SealedChannel& operator=(SealedChannel&&) = default;
  ~SealedChannel();

  /// Returns the frame of the next message. Throws kInvalidArgument above the limit.
  std::vector<std::byte> Seal(std::span<const std::byte> payload);
  /// Takes bytes that arrived, in any pieces.
  void Feed(std::span<const std::byte> bytes);
  /// Returns the next whole message, if there is one. Throws kUnauthenticated when a frame is
  /// forged, changed, repeated or out of order, or announces more than the limit.
  std::optional<std::vector<std::byte>> Next();

 private:
  struct Direction {
    std::array<std::uint8_t, 32> key{};
    std::uint64_t sequence = 0;
  };

  std::size_t limit_;
  Direction sending_;
  Direction receiving_;
  std::vector<std::byte> buffer_;  // What arrived; the bytes before consumed_ are done with.
  std::size_t consumed_ = 0;
  bool broken_ = false;
};

}  // namespace orca::net
