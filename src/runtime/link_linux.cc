#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/nesting.h"
#include "orca/net/socket.h"
#include "runtime/link.h"

namespace orca::runtime {
namespace {

// A packet: length of the head (u32), the head, and a short parcel. Descriptors: a long parcel's
// memory first, then the message's own.
constexpr std::size_t kMaxPacket = std::size_t{128} << 10;
constexpr std::size_t kMaxFds = 8;
constexpr int kSocketBuffer = 1 << 20;

struct ControlBuffer {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxFds)> bytes;
};

[[noreturn]] void ThrowLost(const std::string& why) {
  throw Error(Code::kPeerLost, fmt::format("the other process is gone: {}", why));
}

Message Decode(std::span<const std::byte> packet, std::vector<UniqueFd> fds) {
  std::uint32_t head_bytes = 0;
  if (packet.size() < sizeof head_bytes) ThrowLost("it sent an incomplete message");
  std::memcpy(&head_bytes, packet.data(), sizeof head_bytes);
  packet = packet.subspan(sizeof head_bytes);
  if (head_bytes > packet.size()) ThrowLost("it sent an incomplete message");
  if (!IsShallowMessagePack(packet.first(head_bytes))) ThrowLost("it sent words too deep");
  const auto* text = reinterpret_cast<const std::uint8_t*>(packet.data());
  Message message;
  message.head = Json::from_msgpack(text, text + head_bytes, true, false);
  if (!message.head.is_object()) ThrowLost("it sent something that is no message");
  const auto rest = packet.subspan(head_bytes);
  if (const auto memory = message.head.find("memory"); memory != message.head.end()) {
    if (fds.empty() || !memory->is_number_unsigned()) ThrowLost("it did not send the memory");
    message.parcel = Parcel::FromFd(std::move(fds.front()), memory->get<std::size_t>());
    fds.erase(fds.begin());
    message.head.erase(memory);
  } else if (!rest.empty()) {
    message.parcel = Parcel::FromBytes({rest.begin(), rest.end()});
  }
  message.fds = std::move(fds);
  return message;
}

}  // namespace

std::pair<UniqueFd, UniqueFd> UnixLink::Pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    throw Error(Code::kResourceExhausted,
                fmt::format("cannot make a socket: {}", DescribeLimitError(errno)));
  for (const int fd : ends)
    ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSocketBuffer, sizeof kSocketBuffer);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void UnixLink::Send(Message message) {
  Packet packet{.parcel = std::move(message.parcel), .fds = std::move(message.fds)};
  if (packet.parcel.fd() >= 0) message.head["memory"] = packet.parcel.size();
  std::vector<std::uint8_t> head;
  Json::to_msgpack(message.head, head);
  const auto head_bytes = static_cast<std::uint32_t>(head.size());
  const auto inside =
      packet.parcel.fd() >= 0 ? std::span<const std::byte>() : packet.parcel.bytes();
  packet.bytes.resize(sizeof head_bytes + head.size() + inside.size());
  if (packet.bytes.size() > kMaxPacket) {
    throw Error(Code::kInternal, fmt::format("a message of {} bytes is above the limit of {}",
                                             packet.bytes.size(), kMaxPacket));
  }
  std::memcpy(packet.bytes.data(), &head_bytes, sizeof head_bytes);
  std::memcpy(packet.bytes.data() + sizeof head_bytes, head.data(), head.size());
  if (!inside.empty())
    std::memcpy(packet.bytes.data() + sizeof head_bytes + head.size(), inside.data(),
                inside.size());
  queued_ += packet.bytes.size();
  queue_.push_back(std::move(packet));
  Flush();
}

bool UnixLink::TrySend(const Packet& packet) {
  std::vector<int> fds;
  if (packet.parcel.fd() >= 0) fds.push_back(packet.parcel.fd());
  for (const UniqueFd& fd : packet.fds) fds.push_back(fd.get());
  iovec part{.iov_base = const_cast<std::byte*>(packet.bytes.data()),
             .iov_len = packet.bytes.size()};
  ControlBuffer control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    const std::size_t bytes = sizeof(int) * std::min(fds.size(), kMaxFds);
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(header), fds.data(), bytes);
  }
  for (;;) {
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return true;
    if (errno == EINTR) continue;
    // A broken link swallows what is sent; Receive says that it is broken.
    return errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS;
  }
}

void UnixLink::Flush() {
  while (!queue_.empty() && TrySend(queue_.front())) {
    queued_ -= queue_.front().bytes.size();
    queue_.pop_front();
  }
}

std::optional<Message> UnixLink::Receive() {
  buffer_.resize(kMaxPacket);
  iovec part{.iov_base = buffer_.data(), .iov_len = buffer_.size()};
  ControlBuffer control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // Of an end that left messages unread the kernel says so once, before what that end had sent.
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
  if (got < 0) ThrowLost(std::strerror(errno));
  std::vector<UniqueFd> fds = net::TakeFds(message);
  if (got == 0) ThrowLost("it closed the connection");
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    throw Error(Code::kResourceExhausted,
                fmt::format("cannot take a descriptor: {}", DescribeLimitError(EMFILE)));
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) ThrowLost("it sent a message above the limit");
  return Decode(std::span(buffer_).first(static_cast<std::size_t>(got)), std::move(fds));
}

std::string Shortened(const std::string& text, std::size_t limit) {
  if (text.size() <= limit) return text;
  const std::size_t half = limit / 2;
  return fmt::format("{}\n... {} bytes left out ...\n{}", text.substr(0, half),
                     text.size() - 2 * half, text.substr(text.size() - half));
}

}  // namespace orca::runtime
