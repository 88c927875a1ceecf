#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "orca/core/error.h"
#include "orca/core/nesting.h"
#include "runtime/link.h"

namespace orca::runtime {
namespace {

// A frame is a kind and its bytes: the head of a message, or a piece of its parcel.
constexpr std::byte kHead{'H'};
constexpr std::byte kPiece{'P'};
constexpr std::size_t kPieceBytes = std::size_t{48} << 10;
constexpr int kFramesAtATime = 128;
constexpr int kReadsAtATime = 128;
constexpr std::size_t kLongestFrame = std::size_t{256} << 10;

[[noreturn]] void ThrowLost(const std::string& why) {
  throw Error(Code::kPeerLost, fmt::format("the connection broke: {}", why));
}

}  // namespace

TcpLink::TcpLink(UniqueFd socket, const net::SessionKeys& keys, net::SealedChannel::Side side)
    : socket_(std::move(socket)), channel_(keys, side, kLongestFrame) {
  const int on = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void TcpLink::Send(Message message) {
  if (!message.fds.empty())
    throw Error(Code::kInternal, "descriptors cannot travel to another host");
  Outgoing outgoing{.parcel = std::move(message.parcel), .keep = std::move(message.keep)};
  if (outgoing.parcel.size() > 0) message.head["parcel"] = outgoing.parcel.size();
  std::vector<std::uint8_t> head;
  Json::to_msgpack(message.head, head);
  outgoing.head.push_back(kHead);
  const auto bytes = std::as_bytes(std::span(head));
  outgoing.head.insert(outgoing.head.end(), bytes.begin(), bytes.end());
  queued_ += outgoing.head.size() + outgoing.parcel.size();
  queue_.push_back(std::move(outgoing));
  Flush();
}

void TcpLink::SealNext() {
  Outgoing& next = queue_.front();
  std::vector<std::byte> frame;
  if (!next.head.empty()) {
    frame = std::exchange(next.head, {});
  } else {
    const auto piece = next.parcel.bytes().subspan(
        next.sent, std::min(kPieceBytes, next.parcel.size() - next.sent));
    frame.push_back(kPiece);
    frame.insert(frame.end(), piece.begin(), piece.end());
    next.sent += piece.size();
  }
  queued_ -= std::min(queued_, frame.size());
  unsent_ = channel_.Seal(frame);
  unsent_begin_ = 0;
  if (next.sent == next.parcel.size()) queue_.pop_front();
}

// Not more than a part of a long parcel at a time: others wait for the same loop.
void TcpLink::Flush() {
  for (int frames = 0; !broken_ && (!unsent_.empty() || !queue_.empty());) {
    if (unsent_.empty()) {
      if (++frames > kFramesAtATime) return;
      SealNext();
    }
    const ssize_t sent = ::send(socket_.get(), unsent_.data() + unsent_begin_,
                                unsent_.size() - unsent_begin_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (sent < 0) {
      broken_ = true;  // Receive says why
      queue_.clear();
      unsent_.clear();
      return;
    }
    unsent_begin_ += static_cast<std::size_t>(sent);
    if (unsent_begin_ == unsent_.size()) unsent_.clear();
  }
}

std::optional<Message> TcpLink::Receive() {
  for (int reads = 0;; ++reads) {
    while (const auto frame = channel_.Next())
      if (auto message = Take(*frame)) return message;
    if (reads == kReadsAtATime) return std::nullopt;  // others wait for the same loop
    std::array<std::byte, 65536> buffer;
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
    if (got < 0) ThrowLost(std::strerror(errno));
    if (got == 0) ThrowLost("the other end closed it");
    channel_.Feed(std::span(buffer).first(static_cast<std::size_t>(got)));
  }
}

// Without memory for its parcel a message says so, and the connection lives on.
void TcpLink::MakeRoom(std::size_t size) {
  try {
    parcel_.emplace(size);
  } catch (const Error& error) {
    head_["error"] = error.what();
    head_["code"] = static_cast<int>(error.code());
    skipped_ = size;
  }
}

// A message is whole when its parcel is.
std::optional<Message> TcpLink::Take(std::span<const std::byte> frame) {
  if (frame.empty()) ThrowLost("it brought an empty frame");
  const auto rest = frame.subspan(1);
  if (frame[0] == kPiece) {
    if (skipped_ > 0) {
      if (rest.size() > skipped_) ThrowLost("it brought more than it announced");
      skipped_ -= rest.size();
    } else if (parcel_) {
      parcel_->Append(rest);
    } else {
      ThrowLost("it brought a piece of nothing");
    }
  } else {
    const auto* text = reinterpret_cast<const std::uint8_t*>(rest.data());
    if (parcel_ || skipped_ > 0) ThrowLost("it brought a message inside another");
    if (!IsShallowMessagePack(rest)) ThrowLost("it brought words too deep");
    head_ = Json::from_msgpack(text, text + rest.size(), true, false);
    if (!head_.is_object()) ThrowLost("it brought something that is no message");
    if (const auto size = head_.find("parcel"); size != head_.end()) {
      if (!size->is_number_unsigned()) ThrowLost("it brought a parcel without a size");
      MakeRoom(size->get<std::size_t>());
      head_.erase("parcel");
    }
  }
  if (skipped_ > 0 || (parcel_ && !parcel_->complete())) return std::nullopt;
  Message message{.head = std::move(head_)};
  if (parcel_) message.parcel = parcel_->Take();
  parcel_.reset();
  return message;
}

}  // namespace orca::runtime
