#include "comm/store_protocol.h"

#include <fmt/format.h>

#include "orca/core/error.h"

namespace orca::comm {
namespace {

// A request is: kind u8, timeout in ms u64, length of the key u32, key, value. A reply is: status
// u8, value.
constexpr std::size_t kRequestFields = 1 + 8 + 4;

void PutLittle(std::vector<std::byte>& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

std::uint64_t TakeLittle(std::span<const std::byte>& in, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) value |= std::to_integer<std::uint64_t>(in[i]) << (8 * i);
  in = in.subspan(bytes);
  return value;
}

void PutText(std::vector<std::byte>& out, const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

std::string TakeText(std::span<const std::byte>& in, std::size_t size) {
  std::string text(reinterpret_cast<const char*>(in.data()), size);
  in = in.subspan(size);
  return text;
}

[[noreturn]] void ThrowNoMessage(const char* what) {
  throw Error(
      Code::kPeerLost,
      fmt::format(
          "the other end of a store connection sent {}; use the same version of Orca everywhere",
          what));
}

}  // namespace

std::vector<std::byte> Encode(const StoreRequest& request) {
  std::vector<std::byte> out;
  out.reserve(kRequestFields + request.key.size() + request.value.size());
  PutLittle(out, static_cast<std::uint64_t>(request.kind), 1);
  PutLittle(out, static_cast<std::uint64_t>(request.timeout.count()), 8);
  PutLittle(out, request.key.size(), 4);
  PutText(out, request.key);
  PutText(out, request.value);
  return out;
}

std::vector<std::byte> Encode(const StoreReply& reply) {
  std::vector<std::byte> out;
  out.reserve(1 + reply.value.size());
  PutLittle(out, static_cast<std::uint64_t>(reply.status), 1);
  PutText(out, reply.value);
  return out;
}

StoreRequest DecodeStoreRequest(std::span<const std::byte> bytes) {
  if (bytes.size() < kRequestFields) ThrowNoMessage("a request that is too short");
  StoreRequest request;
  const std::uint64_t kind = TakeLittle(bytes, 1);
  if (kind != 1 && kind != 2) ThrowNoMessage("a request of an unknown kind");
  request.kind = static_cast<StoreRequest::Kind>(kind);
  request.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(TakeLittle(bytes, 8)));
  const std::uint64_t key_size = TakeLittle(bytes, 4);
  if (key_size > bytes.size()) ThrowNoMessage("a request with a key longer than itself");
  request.key = TakeText(bytes, key_size);
  request.value = TakeText(bytes, bytes.size());
  return request;
}

StoreReply DecodeStoreReply(std::span<const std::byte> bytes) {
  if (bytes.empty()) ThrowNoMessage("an empty reply");
  const std::uint64_t status = TakeLittle(bytes, 1);
  if (status > 2) ThrowNoMessage("a reply with an unknown status");
  return {static_cast<StoreReply::Status>(status), TakeText(bytes, bytes.size())};
}

net::Hello StoreHello() {
  net::Hello hello;
  hello.job = net::HashName("orca tcp store");
  return hello;
}

}  // namespace orca::comm
