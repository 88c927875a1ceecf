// Moving bytes and descriptors through a connected socket.
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include "net/address.h"
#include "net/os_error.h"
#include "net/socket_wait.h"
#include "orca/core/error.h"
#include "orca/net/socket.h"

namespace orca::net {
namespace {

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

[[noreturn]] void ThrowLate(int fd, const char* doing, std::size_t done, std::size_t all) {
  throw Error(Code::kTimeout, fmt::format("{} {} came to {} of {} bytes before the deadline", doing,
                                          PeerEndpoint(fd).ToString(), done, all));
}

[[noreturn]] void ThrowLost(int fd, std::size_t done, std::size_t all, int error) {
  const std::string why = error == 0 ? "the other end closed it" : ErrnoText(error);
  throw Error(Code::kPeerLost, fmt::format("the connection to {} ended after {} of {} bytes: {}",
                                           PeerEndpoint(fd).ToString(), done, all, why));
}

// Receives at least one byte into `data`, of which `done` are here already.
std::size_t Recv(int fd, std::span<std::byte> data, std::size_t done, const Deadline& deadline) {
  while (true) {
    const ssize_t got = ::recv(fd, data.data() + done, data.size() - done, MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) ThrowLost(fd, done, data.size(), 0);
    if (errno == EINTR) continue;
    if (!WouldBlock(errno)) ThrowLost(fd, done, data.size(), errno);
    if (!WaitFor(fd, POLLIN, deadline)) ThrowLate(fd, "receiving from", done, data.size());
  }
}

// Calls `step` until it moves something; it returns what send(2) and recv(2) return.
template <typename Step>
std::size_t MoveSome(int fd, short events, const Deadline& deadline, Step step) {
  while (true) {
    const ssize_t moved = step();
    if (moved >= 0) return static_cast<std::size_t>(moved);
    if (errno == EINTR) continue;
    if (!WouldBlock(errno)) ThrowErrno(Code::kPeerLost, "the Unix socket failed", errno);
    if (!WaitFor(fd, events, deadline)) {
      throw Error(Code::kTimeout,
                  "the other end of the Unix socket did not hand over a descriptor in time");
    }
  }
}

// Room for a few, so that a peer that sends too many is told apart from one that sends none.
constexpr std::size_t kMaxFds = 4;

struct ControlBuffer {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxFds)> bytes;
};

}  // namespace

bool WaitFor(int fd, short events, const Deadline& deadline) {
  pollfd entry{.fd = fd, .events = events, .revents = 0};
  while (true) {
    const auto left = std::min<std::chrono::milliseconds::rep>(deadline.Left().count(), INT_MAX);
    const int ready = ::poll(&entry, 1, static_cast<int>(left));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) ThrowErrno(Code::kInternal, "poll failed", errno);
    if (deadline.Passed()) return false;
  }
}

void SendAll(int fd, std::span<const std::byte> data, const Deadline& deadline) {
  std::size_t done = 0;
  while (done < data.size()) {
    const ssize_t sent =
        ::send(fd, data.data() + done, data.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      done += static_cast<std::size_t>(sent);
    } else if (WouldBlock(errno)) {
      if (!WaitFor(fd, POLLOUT, deadline)) ThrowLate(fd, "sending to", done, data.size());
    } else if (errno != EINTR) {
      ThrowLost(fd, done, data.size(), errno);
    }
  }
}

void RecvAll(int fd, std::span<std::byte> data, const Deadline& deadline) {
  std::size_t done = 0;
  while (done < data.size()) done += Recv(fd, data, done, deadline);
}

std::size_t RecvSome(int fd, std::span<std::byte> data, const Deadline& deadline) {
  return Recv(fd, data, 0, deadline);
}

void SendFd(int socket, int fd, const Deadline& deadline) {
  char mark = 'f';  // A descriptor travels with at least one byte.
  iovec part{.iov_base = &mark, .iov_len = 1};
  ControlBuffer control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = CMSG_SPACE(sizeof fd);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  MoveSome(socket, POLLOUT, deadline,
           [&] { return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT); });
}

std::vector<UniqueFd> TakeFds(msghdr& message) {
  std::vector<UniqueFd> taken;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= header->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + at, sizeof fd);
      taken.emplace_back(fd);
    }
  }
  return taken;
}

UniqueFd RecvFd(int socket, const Deadline& deadline) {
  char mark = 0;
  iovec part{.iov_base = &mark, .iov_len = 1};
  ControlBuffer control{};
  msghdr message{};
  const std::size_t got = MoveSome(socket, POLLIN, deadline, [&] {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    return ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  });
  if (got == 0)
    throw Error(Code::kPeerLost,
                "the other end closed the Unix socket instead of handing over a descriptor");
  std::vector<UniqueFd> taken = TakeFds(message);
  // The kernel cuts the message short when this process may not open one more.
  if (taken.empty() && (message.msg_flags & MSG_CTRUNC) != 0) {
    ThrowErrno(Code::kResourceExhausted, "cannot take a descriptor from another process", EMFILE);
  }
  if (taken.size() != 1) {
    throw Error(Code::kPeerLost,
                fmt::format("the other end of the Unix socket handed over {} descriptors, not 1",
                            taken.size()));
  }
  return std::move(taken.front());
}

void CheckPeerUser(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    ThrowErrno(Code::kUnauthenticated, "cannot tell who is at the other end of the Unix socket",
               errno);
  }
  if (peer.uid == ::geteuid() || peer.uid == 0) return;
  throw Error(
      Code::kUnauthenticated,
      fmt::format(
          "process {} of user {} connected to a socket of user {}; all ranks of a host must run "
          "as one user",
          peer.pid, peer.uid, ::geteuid()));
}

}  // namespace orca::net
