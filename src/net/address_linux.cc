#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <future>
#include <memory>
#include <sstream>
#include <thread>

#include "net/address.h"
#include "net/os_error.h"
#include "orca/core/error.h"
#include "orca/net/socket.h"

namespace orca::net {
namespace {

[[noreturn]] void ThrowBadAddress(const std::string& address, const char* why) {
  throw Error(
      Code::kInvalidArgument,
      fmt::format("address \"{}\" {}; give \"host:port\" or \"[v6 address]:port\"", address, why));
}

Resolved Lookup(const HostPort& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* list = nullptr;
  const int status = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &list);
  Resolved resolved;
  if (status != 0) {
    resolved.error = status == EAI_SYSTEM ? ErrnoText(errno) : ::gai_strerror(status);
    resolved.transient = status == EAI_AGAIN || status == EAI_SYSTEM;
    return resolved;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  for (const addrinfo* info = list; info != nullptr; info = info->ai_next) {
    Endpoint endpoint;
    std::memcpy(&endpoint.storage, info->ai_addr, info->ai_addrlen);
    endpoint.size = info->ai_addrlen;
    resolved.endpoints.push_back(endpoint);
  }
  return resolved;
}

// The interface of the default route, the one that other hosts most likely reach; empty when there
// is none.
std::string DefaultInterface() {
  std::ifstream routes("/proc/net/route");
  std::string line;
  std::getline(routes, line);
  while (std::getline(routes, line)) {
    std::istringstream fields(line);
    std::string interface;
    std::string destination;
    if (fields >> interface >> destination && destination == "00000000") return interface;
  }
  return {};
}

// Smaller is better; negative: not for other hosts.
int AddressRank(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) return -1;
  const bool loopback = (entry.ifa_flags & IFF_LOOPBACK) != 0;
  if (entry.ifa_addr->sa_family == AF_INET) {
    const auto& address = reinterpret_cast<const sockaddr_in*>(entry.ifa_addr)->sin_addr;
    const bool link_local = ntohl(address.s_addr) >> 16 == 0xa9fe;  // 169.254.0.0/16
    return link_local ? -1 : loopback ? 2 : 0;
  }
  if (entry.ifa_addr->sa_family == AF_INET6) {
    const auto& address = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr;
    return IN6_IS_ADDR_LINKLOCAL(&address) ? -1 : loopback ? 3 : 1;
  }
  return -1;
}

std::string HostText(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST];
  if (::getnameinfo(address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return address->sa_family == AF_INET6 ? fmt::format("[{}]", host) : host;
}

}  // namespace

HostPort ParseAddress(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) ThrowBadAddress(address, "has no port");
  HostPort result{address.substr(0, colon), address.substr(colon + 1)};
  unsigned port = 0;
  const char* const end = result.port.data() + result.port.size();
  const auto parsed = std::from_chars(result.port.data(), end, port);
  if (parsed.ec != std::errc() || parsed.ptr != end || port > 65535) {
    ThrowBadAddress(address, "has a port that is not a number up to 65535");
  }
  if (result.host.starts_with('[') && result.host.ends_with(']')) {
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (result.host.find(':') != std::string::npos) {
    ThrowBadAddress(address, "has an IPv6 address without brackets");
  }
  if (result.host.empty()) ThrowBadAddress(address, "has no host");
  if (result.host.find('\0') != std::string::npos) ThrowBadAddress(address, "has a zero byte");
  return result;
}

std::uint16_t Endpoint::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  if (family() == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return 0;
}

std::string Endpoint::ToString() const {
  if (size == 0) return "the peer";
  if (family() == AF_UNIX) return "a Unix socket";
  return fmt::format("{}:{}", HostText(raw(), size), port());
}

Resolved Resolve(const HostPort& address, const Deadline& deadline) {
  Resolved numeric = Lookup(address, AI_NUMERICHOST);
  if (!numeric.endpoints.empty()) return numeric;
  // A resolver cannot be interrupted, so it gets a thread of its own; a late one ends alone,
  // holding only the promise.
  auto promise = std::make_shared<std::promise<Resolved>>();
  std::future<Resolved> future = promise->get_future();
  std::thread([promise, address] { promise->set_value(Lookup(address, 0)); }).detach();
  if (future.wait_until(deadline.at()) == std::future_status::ready) return future.get();
  return {.endpoints = {}, .error = "the name server does not answer", .transient = true};
}

Endpoint LocalEndpoint(int fd) {
  Endpoint endpoint;
  endpoint.size = sizeof endpoint.storage;
  if (::getsockname(fd, endpoint.raw(), &endpoint.size) != 0) endpoint.size = 0;
  return endpoint;
}

Endpoint PeerEndpoint(int fd) {
  Endpoint endpoint;
  endpoint.size = sizeof endpoint.storage;
  if (::getpeername(fd, endpoint.raw(), &endpoint.size) != 0) endpoint.size = 0;
  return endpoint;
}

std::vector<std::string> LocalAddresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0)
    ThrowErrno(Code::kUnavailable, "cannot list the network interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  const std::string preferred = DefaultInterface();
  struct Found {
    int rank;
    bool
        aside;  // Not on the interface of the default route, e.g. the bridge of a container engine.
    std::string text;
  };
  std::vector<Found> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const int rank = AddressRank(*entry);
    if (rank < 0) continue;
    const socklen_t size =
        entry->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    found.push_back({rank, entry->ifa_name != preferred, HostText(entry->ifa_addr, size)});
  }
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::pair(a.rank, a.aside) < std::pair(b.rank, b.aside);
  });
  std::vector<std::string> addresses;
  for (Found& one : found) {
    if (!one.text.empty()) addresses.push_back(std::move(one.text));
  }
  return addresses;
}

}  // namespace orca::net
