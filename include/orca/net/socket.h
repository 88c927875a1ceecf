// Sockets: TCP between hosts, abstract Unix sockets on one host. Every wait has a deadline.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "orca/core/deadline.h"
#include "orca/core/export.h"
#include "orca/core/unique_fd.h"

namespace orca::net {

/// All descriptors are close-on-exec and non-blocking.

/// Listens on `address` ("host:port", "[v6]:port"; port 0 takes any free one); `bound` receives
/// what was taken. A port in use throws kUnavailable naming the process that holds it where that
/// can be found out.
ORCA_API UniqueFd ListenTcp(const std::string& address, std::string* bound);
/// Listens on an abstract Unix socket with a name that the kernel chooses; `name` receives it.
ORCA_API UniqueFd ListenUnix(std::string* name);
/// Takes the next waiting connection; empty when there is none.
ORCA_API UniqueFd Accept(int listener);

/// Connects to the first of `addresses` ("host:port") that answers; retries refused ones until the
/// deadline. The error lists what was tried and why each failed.
ORCA_API UniqueFd ConnectTcp(std::span<const std::string> addresses, const Deadline& deadline);
ORCA_API UniqueFd ConnectUnix(const std::string& name, const Deadline& deadline);

/// Sends or receives exactly that many bytes. Throws kPeerLost when the peer closes, kTimeout at
/// the deadline.
ORCA_API void SendAll(int fd, std::span<const std::byte> data, const Deadline& deadline);
ORCA_API void RecvAll(int fd, std::span<std::byte> data, const Deadline& deadline);
/// Receives what there is, at least one byte; waits for it. Throws as RecvAll does.
ORCA_API std::size_t RecvSome(int fd, std::span<std::byte> data, const Deadline& deadline);

/// Hands a descriptor to the process at the other end of a Unix socket, and takes one.
ORCA_API void SendFd(int socket, int fd, const Deadline& deadline);
ORCA_API UniqueFd RecvFd(int socket, const Deadline& deadline);
/// The descriptors that came with what recvmsg(2) has put into `message`.
ORCA_API std::vector<UniqueFd> TakeFds(msghdr& message);
/// Throws kUnauthenticated unless the other end of the Unix socket belongs to this user (or root).
ORCA_API void CheckPeerUser(int socket);

/// For bulk data: no delay, cubic where the kernel has it (bbr is slow on fast local links), large
/// buffers, and an end after `user_timeout` without an acknowledgement. What the kernel refuses is
/// left as it was.
ORCA_API void TuneDataSocket(int fd, std::chrono::milliseconds user_timeout);

/// The addresses that other hosts may reach this one by, best first: those with a global scope,
/// then loopback. Without a port; IPv6 ones are in brackets, so that `address + ":" + port`
/// connects.
ORCA_API std::vector<std::string> LocalAddresses();

}  // namespace orca::net
