// "host:port" and what the kernel makes of it.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "orca/core/deadline.h"

namespace orca::net {

struct HostPort {
  std::string host;
  std::string port;
};

/// Splits "host:port" or "[v6]:port". Throws kInvalidArgument.
HostPort ParseAddress(const std::string& address);

/// A socket address of the kernel.
struct Endpoint {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  /// In host order.
  std::uint16_t port() const;
  /// "10.0.0.7:80", "[::1]:80", or "a Unix socket".
  std::string ToString() const;
};

/// The addresses that a name stands for, or why there are none.
struct Resolved {
  std::vector<Endpoint> endpoints;
  std::string error;
  bool transient = false;  ///< Asking again may help.
};

/// Looks `address` up. Only names that are not numeric wait for a resolver, and not past the
/// deadline.
Resolved Resolve(const HostPort& address, const Deadline& deadline);

/// The local and the other end's address of a socket; size 0 when there is none.
Endpoint LocalEndpoint(int fd);
Endpoint PeerEndpoint(int fd);

}  // namespace orca::net
