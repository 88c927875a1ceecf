// Making sockets: listening, accepting, connecting.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "net/address.h"
#include "net/os_error.h"
#include "net/port_holder.h"
#include "net/socket_wait.h"
#include "orca/core/error.h"
#include "orca/net/socket.h"

namespace orca::net {
namespace {

using std::chrono::milliseconds;

constexpr int kSocketFlags = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
constexpr int kDataBuffer = 4 * 1024 * 1024;
constexpr milliseconds kResolveLimit{10'000};  // For a listener's own name.
constexpr milliseconds kFirstTry{1'000};       // For one of several addresses; doubled every round.
constexpr milliseconds kFirstPause{10};
constexpr milliseconds kLongestPause{250};

UniqueFd NewSocket(int family) {
  UniqueFd fd(::socket(family, kSocketFlags, 0));
  if (!fd) ThrowErrno(Code::kUnavailable, "cannot make a socket", errno);
  return fd;
}

bool SetOption(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof value) == 0;
}

[[noreturn]] void ThrowCannotListen(const std::string& address, const Endpoint& endpoint,
                                    int error) {
  if (error == EADDRINUSE) {
    throw Error(
        Code::kUnavailable,
        fmt::format("cannot listen on {}: port {} is in use by {}; stop it, or take another port "
                    "(0 takes any free one)",
                    address, endpoint.port(), PortHolder(endpoint.port())));
  }
  if (error == EADDRNOTAVAIL) {
    throw Error(Code::kUnavailable,
                fmt::format("cannot listen on {}: it is no address of this host, which has {}",
                            address, fmt::join(LocalAddresses(), ", ")));
  }
  ThrowErrno(Code::kUnavailable, fmt::format("cannot listen on {}", address), error);
}

/// One address that ConnectTcp tries.
struct Attempt {
  std::string address;   // As the caller wrote it.
  std::string failures;  // Of the last round.
  bool hopeless = false;
  bool only = false;  // There is no other.
};

// Whether a later try may go better: the other process may still be starting.
bool MayPass(int error) {
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case EAGAIN:
    case EADDRNOTAVAIL:  // All local ports are taken at the moment.
      return true;
    default:
      return false;
  }
}

// Returns 0, or why the connection did not come about; ETIMEDOUT at the deadline.
int FinishConnect(int fd, const Deadline& deadline) {
  if (!WaitFor(fd, POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

// A socket that tries a free port of its own host may meet itself.
bool MetItself(int fd) { return LocalEndpoint(fd).ToString() == PeerEndpoint(fd).ToString(); }

int TryConnect(int fd, const Endpoint& endpoint, const Deadline& deadline) {
  int error = ::connect(fd, endpoint.raw(), endpoint.size) == 0 ? 0 : errno;
  if (error == EINPROGRESS || error == EINTR) error = FinishConnect(fd, deadline);
  if (error == 0 && MetItself(fd)) return ECONNREFUSED;
  return error;
}

UniqueFd TryAddress(Attempt& attempt, milliseconds limit, const Deadline& deadline) {
  attempt.failures.clear();
  attempt.hopeless = true;
  const Resolved resolved = Resolve(ParseAddress(attempt.address), deadline);
  if (resolved.endpoints.empty()) {
    attempt.failures = fmt::format("cannot resolve the name: {}", resolved.error);
    attempt.hopeless = !resolved.transient;
  }
  for (const Endpoint& endpoint : resolved.endpoints) {
    UniqueFd fd = NewSocket(endpoint.family());
    // A silent address must not keep us from the next; without a next one it may use all the time.
    const bool last = attempt.only && resolved.endpoints.size() == 1;
    const int error = TryConnect(
        fd.get(), endpoint, last ? deadline : Deadline::After(std::min(limit, deadline.Left())));
    if (error == 0) return fd;
    if (MayPass(error)) attempt.hopeless = false;
    attempt.failures += fmt::format("{}{}: {}", attempt.failures.empty() ? "" : ", ",
                                    endpoint.ToString(), ErrnoText(error));
  }
  return UniqueFd();
}

std::string Report(const std::vector<Attempt>& attempts) {
  std::vector<std::string> lines;
  for (const Attempt& attempt : attempts) {
    lines.push_back(fmt::format("{} ({})", attempt.address, attempt.failures));
  }
  return fmt::format("{}", fmt::join(lines, "; "));
}

void Pause(milliseconds pause, const Deadline& deadline) {
  ::poll(nullptr, 0, static_cast<int>(std::min(pause, deadline.Left()).count()));
}

// The address of an abstract socket begins with a zero byte and is as long as its size says.
Endpoint AbstractEndpoint(const std::string& name) {
  Endpoint endpoint;
  auto* const address = reinterpret_cast<sockaddr_un*>(&endpoint.storage);
  if (name.empty() || name.size() + 1 > sizeof address->sun_path) {
    throw Error(Code::kInvalidArgument,
                fmt::format("the name of a Unix socket has {} bytes; give 1 to {}", name.size(),
                            sizeof address->sun_path - 1));
  }
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  endpoint.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return endpoint;
}

}  // namespace

UniqueFd ListenTcp(const std::string& address, std::string* bound) {
  const Resolved resolved = Resolve(ParseAddress(address), Deadline::After(kResolveLimit));
  if (resolved.endpoints.empty()) {
    throw Error(Code::kUnavailable,
                fmt::format("cannot listen on {}: {}", address, resolved.error));
  }
  const Endpoint& endpoint = resolved.endpoints.front();
  UniqueFd fd = NewSocket(endpoint.family());
  // Connections of an earlier process that the kernel still winds down do not block the port.
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (endpoint.family() == AF_INET6) SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(fd.get(), endpoint.raw(), endpoint.size) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    ThrowCannotListen(address, endpoint, errno);
  }
  if (bound != nullptr) *bound = LocalEndpoint(fd.get()).ToString();
  return fd;
}

UniqueFd ListenUnix(std::string* name) {
  UniqueFd fd = NewSocket(AF_UNIX);
  const sockaddr_un nameless{.sun_family = AF_UNIX, .sun_path = {}};
  // An address without a path lets the kernel choose a name.
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&nameless), sizeof(sa_family_t)) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    ThrowErrno(Code::kUnavailable, "cannot listen on a Unix socket", errno);
  }
  const Endpoint endpoint = LocalEndpoint(fd.get());
  const auto* const address = reinterpret_cast<const sockaddr_un*>(&endpoint.storage);
  const std::size_t skipped = offsetof(sockaddr_un, sun_path) + 1;
  *name = std::string(address->sun_path + 1, endpoint.size - skipped);
  return fd;
}

UniqueFd Accept(int listener) {
  while (true) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) return fd;
    const int error = errno;
    switch (error) {
      case EINTR:
        continue;
      case EMFILE:
      case ENFILE:
        // The kernel looks for a free descriptor first, then whether anybody waits.
        if (!WaitFor(listener, POLLIN, Deadline::After(milliseconds(0)))) return UniqueFd();
        [[fallthrough]];
      case ENOMEM:
      case ENOBUFS:
      case EBADF:
      case EINVAL:
      case ENOTSOCK:
        ThrowErrno(Code::kInternal, "cannot accept a connection", error);
      default:
        return UniqueFd();  // Nobody waits, or who waited has failed already.
    }
  }
}

UniqueFd ConnectTcp(std::span<const std::string> addresses, const Deadline& deadline) {
  std::vector<Attempt> attempts;
  for (const std::string& address : addresses) {
    attempts.push_back({address, "not tried", false, addresses.size() == 1});
  }
  if (attempts.empty())
    throw Error(Code::kInvalidArgument, "there is no address to connect to; give at least one");
  milliseconds limit = kFirstTry;
  milliseconds pause = kFirstPause;
  while (true) {
    bool hopeless = true;
    for (Attempt& attempt : attempts) {
      if (UniqueFd fd = TryAddress(attempt, limit, deadline)) return fd;
      hopeless = hopeless && attempt.hopeless;
    }
    if (hopeless || deadline.Passed()) break;
    Pause(pause, deadline);
    pause = std::min(2 * pause, kLongestPause);
    limit *= 2;
  }
  throw Error(Code::kUnavailable, fmt::format("cannot connect; tried {}", Report(attempts)));
}

UniqueFd ConnectUnix(const std::string& name, const Deadline& deadline) {
  const Endpoint endpoint = AbstractEndpoint(name);
  UniqueFd fd = NewSocket(AF_UNIX);
  while (::connect(fd.get(), endpoint.raw(), endpoint.size) != 0) {
    if (errno == EINTR) continue;
    if (errno == ECONNREFUSED) {
      throw Error(
          Code::kUnavailable,
          fmt::format(
              "nobody listens on the abstract Unix socket {}; its process has ended, or is in "
              "another network namespace",
              name));
    }
    // EAGAIN: the listener's queue is full.
    if (errno != EAGAIN)
      ThrowErrno(Code::kUnavailable, fmt::format("cannot connect to Unix socket {}", name), errno);
    if (deadline.Passed()) {
      throw Error(Code::kTimeout,
                  fmt::format("the listener of Unix socket {} did not accept in time", name));
    }
    Pause(kFirstPause, deadline);
  }
  return fd;
}

void TuneDataSocket(int fd, milliseconds user_timeout) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  constexpr char kCubic[] = "cubic";
  ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kCubic, sizeof kCubic - 1);
  // Without privilege the kernel cuts the size to net.core.{w,r}mem_max.
  if (!SetOption(fd, SOL_SOCKET, SO_SNDBUFFORCE, kDataBuffer))
    SetOption(fd, SOL_SOCKET, SO_SNDBUF, kDataBuffer);
  if (!SetOption(fd, SOL_SOCKET, SO_RCVBUFFORCE, kDataBuffer))
    SetOption(fd, SOL_SOCKET, SO_RCVBUF, kDataBuffer);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(user_timeout.count()));
}

}  // namespace orca::net
