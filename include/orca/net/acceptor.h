// Takes connections and lets only those in that know the secret.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "orca/core/deadline.h"
#include "orca/core/error.h"
#include "orca/core/export.h"
#include "orca/core/unique_fd.h"
#include "orca/net/handshake.h"
#include "orca/net/secret.h"

namespace orca::net {

/// Listens and shakes hands for an event loop that it does not own: no call blocks.
///
/// Strangers cost little: a connection has kPatience to prove itself and is read at most the fixed
/// bytes of the handshake. At most kMaxPending of them (a quarter of RLIMIT_NOFILE, if that is
/// less) are kept; when more come the oldest goes, so that a flood of them does not lock out who
/// knows the secret. A wrong proof is answered with silence, and holds its connection for kPenalty.
/// Not thread-safe.
class ORCA_API Acceptor {
 public:
  static constexpr std::chrono::seconds kPatience{5};
  static constexpr std::chrono::milliseconds kPenalty{100};
  static constexpr std::size_t kMaxPending = 1024;

  struct Connection {
    UniqueFd socket;
    Hello hello;
    SessionKeys keys;
    bool local = false;  ///< Came over a Unix socket.
  };

  /// `admit` throws to refuse a client that knows the secret (see Handshake::Server); `deliver`
  /// receives the others.
  Acceptor(const Secret& secret, std::function<void(const Hello&)> admit,
           std::function<void(Connection)> deliver);

  /// Adds a listening socket (ListenTcp, ListenUnix).
  void Listen(UniqueFd listener, bool local);
  /// Appends what the loop must poll.
  void AppendPollFds(std::vector<pollfd>& fds) const;
  /// When Handle must be called though nothing arrived; empty: never.
  std::optional<Deadline> wake_at() const;
  /// Does what can be done without blocking. Call it after every poll.
  void Handle();
  /// How many connections could not prove themselves, or were refused.
  std::uint64_t refused() const { return refused_; }

 private:
  struct Listener {
    UniqueFd socket;
    bool local = false;
  };
  struct Pending {
    UniqueFd socket;
    bool local = false;
    Handshake handshake;
    Deadline deadline;
    std::vector<std::byte> unsent;
    bool refused = false;
  };

  void AcceptNew(const Listener& listener);
  void MakeRoom(const Error& error);
  /// Whether the connection is finished, one way or the other.
  bool Advance(Pending& pending);
  void Refuse(const Error& error);

  Secret secret_;
  std::function<void(const Hello&)> admit_;
  std::function<void(Connection)> deliver_;
  std::vector<Listener> listeners_;
  std::list<Pending> pending_;  // Oldest first.
  std::size_t max_pending_;
  std::optional<Deadline> accept_again_;  // Set while descriptors are short.
  std::uint64_t refused_ = 0;
};

}  // namespace orca::net
