// Mutual proof that both ends of a connection know the job's secret.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "orca/core/deadline.h"
#include "orca/core/export.h"
#include "orca/net/secret.h"

namespace orca::net {

/// What a client says about itself. Fixed size on the wire; nothing else is parsed before the proof.
struct Hello {
  std::array<std::uint8_t, 16> job{};  ///< Which group; see HashName.
  std::uint64_t generation = 0;
  std::uint32_t role = 0;   ///< What the connection is for; the meaning belongs to the caller.
  std::uint32_t rank = 0;
  std::uint32_t index = 0;  ///< Which of several connections of this role.
  bool operator==(const Hello&) const = default;
};

/// First 16 bytes of SHA-256.
ORCA_API std::array<std::uint8_t, 16> HashName(const std::string& name);

/// Keys of one connection, a direction each, derived from the secret and both nonces (HKDF-SHA256).
struct SessionKeys {
  std::array<std::uint8_t, 32> client_to_server{};
  std::array<std::uint8_t, 32> server_to_client{};
};

/// The handshake as a machine without input or output: feed it the bytes that arrive, send what it gives out.
/// The client proves first; a server that is not convinced sends nothing more. Not thread-safe.
class ORCA_API Handshake {
 public:
  static Handshake Client(const Secret& secret, const Hello& hello);
  /// `admit` sees the hello after the proof; it throws to refuse (a stale generation, a foreign job).
  static Handshake Server(const Secret& secret, std::function<void(const Hello&)> admit);

  /// Bytes that must be sent now; empties the buffer.
  std::vector<std::byte> TakeOutput();
  /// How many more bytes are wanted before something happens; 0 when done. At most 128.
  std::size_t wanted() const;
  /// Takes up to wanted() bytes. Throws kUnauthenticated when the other end does not know the secret.
  void Feed(std::span<const std::byte> bytes);
  bool done() const;
  const Hello& hello() const;
  const SessionKeys& keys() const;

 private:
  enum class State : std::uint8_t;
  // ... (the implementer completes this)
};

/// Runs the handshake over a connected socket. Both throw kUnauthenticated, kTimeout or kPeerLost.
ORCA_API SessionKeys ConnectHandshake(int fd, const Secret& secret, const Hello& hello, const Deadline& deadline);

}  // namespace orca::net
