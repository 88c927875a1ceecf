#include "orca/net/channel.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <cstring>
#include <limits>

#include "net/crypto.h"
#include "net/wire.h"
#include "orca/core/error.h"

namespace orca::net {
namespace {

constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kMacBytes = 32;
static_assert(SealedChannel::kOverhead == kLengthBytes + kMacBytes);

// `framed` is the length and the payload, as they are on the wire.
Digest Mac(std::span<const std::uint8_t> key, std::uint64_t sequence, ConstBytes framed) {
  std::array<std::byte, 8> number{};
  StoreLittle(number.data(), sequence);
  return HmacSha256(key, {number, framed});
}

}  // namespace

SealedChannel::SealedChannel(const SessionKeys& keys, Side side, std::size_t limit)
    : limit_(limit) {
  if (limit > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("limit {} does not fit the 32 bits of a frame's length", limit));
  }
  const bool client = side == Side::kClient;
  sending_.key = client ? keys.client_to_server : keys.server_to_client;
  receiving_.key = client ? keys.server_to_client : keys.client_to_server;
}

SealedChannel::~SealedChannel() {
  OPENSSL_cleanse(sending_.key.data(), sending_.key.size());
  OPENSSL_cleanse(receiving_.key.data(), receiving_.key.size());
}

std::vector<std::byte> SealedChannel::Seal(std::span<const std::byte> payload) {
  if (payload.size() > limit_) {
    throw Error(Code::kInvalidArgument,
                fmt::format("a message of {} bytes is above the channel's limit of {}",
                            payload.size(), limit_));
  }
  std::vector<std::byte> frame(payload.size() + kOverhead);
  StoreLittle(frame.data(), static_cast<std::uint32_t>(payload.size()));
  if (!payload.empty()) std::memcpy(frame.data() + kLengthBytes, payload.data(), payload.size());
  const std::size_t mac_at = kLengthBytes + payload.size();
  const Digest mac = Mac(sending_.key, sending_.sequence++, std::span(frame).first(mac_at));
  std::memcpy(frame.data() + mac_at, mac.data(), mac.size());
  return frame;
}

void SealedChannel::Feed(std::span<const std::byte> bytes) {
  if (consumed_ > 0) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(consumed_));
    consumed_ = 0;
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

std::optional<std::vector<std::byte>> SealedChannel::Next() {
  if (broken_) {
    throw Error(Code::kUnauthenticated,
                "the channel has met a forged frame already; close the connection");
  }
  const std::span<const std::byte> arrived = std::span(buffer_).subspan(consumed_);
  if (arrived.size() < kLengthBytes) return std::nullopt;
  const std::size_t length = LoadLittle<std::uint32_t>(arrived.data());
  if (length > limit_) {
    broken_ = true;
    throw Error(
        Code::kUnauthenticated,
        fmt::format("a frame announces {} bytes, above the channel's limit of {}", length, limit_));
  }
  if (arrived.size() < length + kOverhead) return std::nullopt;
  const auto framed = arrived.first(kLengthBytes + length);
  if (!Equal(Mac(receiving_.key, receiving_.sequence, framed),
             arrived.subspan(framed.size(), kMacBytes))) {
    broken_ = true;
    throw Error(
        Code::kUnauthenticated,
        fmt::format(
            "control frame {} fails its check: it was changed, repeated or forged on the way",
            receiving_.sequence));
  }
  ++receiving_.sequence;
  consumed_ += length + kOverhead;
  const auto payload = framed.subspan(kLengthBytes);
  return std::vector<std::byte>(payload.begin(), payload.end());
}

}  // namespace orca::net
