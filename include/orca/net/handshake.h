// Mutual proof that both ends of a connection know the job's secret.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "orca/core/deadline.h"
#include "orca/core/export.h"
#include "orca/net/secret.h"

namespace orca::net {

/// What a client says about itself. Fixed size on the wire; nothing else is parsed before the
/// proof.
struct Hello {
  std::array<std::uint8_t, 16> job{};  ///< Which group; see HashName.
  std::uint64_t generation = 0;
  std::uint32_t role = 0;  ///< What the connection is for; the meaning belongs to the caller.
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

/// The handshake as a machine without input or output: feed it the bytes that arrive, send what it
/// gives out.
///
///   client                                   server
///   magic, version, hello, nonce  (64) ->
///                                         <- nonce  (16)
///   proof of the client           (32) ->    checks it, asks `admit`
///                                         <- proof of the server  (32)
///
/// A proof is an HMAC over everything said so far and the direction, so neither a recorded
/// connection nor the other side's own words help a stranger. The client proves first; a server
/// that is not convinced sends nothing more. An error ends the handshake: every later Feed throws.
/// Not thread-safe.
class ORCA_API Handshake {
 public:
  static Handshake Client(const Secret& secret, const Hello& hello);
  /// `admit` sees the hello after the proof; it throws to refuse (a stale generation, a foreign
  /// job).
  static Handshake Server(const Secret& secret, std::function<void(const Hello&)> admit);

  Handshake(const Handshake&) = default;
  Handshake& operator=(const Handshake&) = default;
  ~Handshake();

  /// Bytes that must be sent now; empties the buffer.
  std::vector<std::byte> TakeOutput();
  /// How many more bytes are wanted before something happens; 0 when done. At most 128.
  std::size_t wanted() const;
  /// Takes up to wanted() bytes. Throws kUnauthenticated when the other end does not know the
  /// secret.
  void Feed(std::span<const std::byte> bytes);
  bool done() const { return state_ == State::kDone; }
  /// What the client said. On the server not before done(): until then nobody vouches for it.
  const Hello& hello() const;
  /// Only when done().
  const SessionKeys& keys() const;

 private:
  enum class State : std::uint8_t {
    kHello,
    kServerNonce,
    kClientProof,
    kServerProof,
    kDone,
    kFailed
  };
  static constexpr std::size_t kHelloBytes = 64;
  static constexpr std::size_t kNonceBytes = 16;
  static constexpr std::size_t kProofBytes = 32;

  Handshake(const Secret& secret, State state);
  void Step(State arrived);
  void TakeHello();
  void TakeServerNonce();
  void TakeClientProof();
  void TakeServerProof();
  /// HMAC(secret, label || transcript || direction).
  std::array<std::uint8_t, 32> Proof(char direction) const;
  void Finish();
  void Send(std::span<const std::byte> bytes);

  Secret secret_;
  std::function<void(const Hello&)> admit_;
  State state_;
  Hello hello_;
  SessionKeys keys_;
  std::array<std::byte, kHelloBytes + kNonceBytes>
      transcript_{};                            // The client's first message and nonce_s.
  std::array<std::byte, kHelloBytes> input_{};  // The message that is arriving ...
  std::size_t filled_ = 0;                      // ... of which so much is here.
  std::vector<std::byte> output_;
};

/// Runs the client's side over a connected socket. Throws kUnauthenticated, kTimeout or kPeerLost.
ORCA_API SessionKeys ConnectHandshake(int fd, const Secret& secret, const Hello& hello,
                                      const Deadline& deadline);

}  // namespace orca::net
