// What a TCP store and its clients say to each other, inside sealed frames.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/store_map.h"
#include "orca/net/handshake.h"

namespace orca::comm {

/// The longest message: a value, its key, and the fields around them.
inline constexpr std::size_t kMaxStoreMessage = kMaxStoreValue + kMaxStoreKey + 64;

struct StoreRequest {
  enum class Kind : std::uint8_t { kSet = 1, kGet = 2 };
  Kind kind = Kind::kGet;
  std::chrono::milliseconds timeout{0};  ///< How long a get may wait.
  std::string key;
  std::string value;
};

struct StoreReply {
  enum class Status : std::uint8_t { kOk = 0, kNotSet = 1, kRefused = 2 };
  Status status = Status::kOk;
  std::string value;  ///< Of a get; the reason when refused.
};

std::vector<std::byte> Encode(const StoreRequest& request);
std::vector<std::byte> Encode(const StoreReply& reply);
/// Throw kPeerLost when the bytes are no message.
StoreRequest DecodeStoreRequest(std::span<const std::byte> bytes);
StoreReply DecodeStoreReply(std::span<const std::byte> bytes);

/// What a store's client says in the handshake, so that connections of other kinds with the same
/// secret are refused.
net::Hello StoreHello();

}  // namespace orca::comm
