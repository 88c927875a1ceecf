// Sends messages through a channel whose frames somebody changes, repeats, drops, cuts and makes
// up, as the input says. Whatever comes out must be what was sealed, in its order.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "input.h"
#include "orca/core/error.h"
#include "orca/net/channel.h"

namespace orca::net {
namespace {

using Bytes = std::vector<std::byte>;

/// What happens to the next frame.
enum class Step : std::uint8_t { kDeliver, kChange, kRepeat, kDrop, kCut, kMakeUp, kCount };

void Append(Bytes& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

void Exchange(FuzzInput& input) {
  SessionKeys keys;
  keys.client_to_server.fill(1);
  keys.server_to_client.fill(2);
  constexpr std::size_t kLimit = 512;
  SealedChannel sender(keys, SealedChannel::Side::kClient, kLimit);
  SealedChannel receiver(keys, SealedChannel::Side::kServer, kLimit);
  std::vector<Bytes> sealed;
  Bytes wire;
  while (!input.empty()) {
    const auto step = static_cast<Step>(input.TakeByte() % static_cast<int>(Step::kCount));
    if (step == Step::kMakeUp) {
      Append(wire, input.TakeBytes(input.TakeByte()));
      continue;
    }
    const auto payload = input.TakeBytes(input.TakeByte());
    Bytes frame = sender.Seal(payload);
    sealed.emplace_back(payload.begin(), payload.end());
    if (step == Step::kChange)
      frame[input.TakeByte() % frame.size()] ^= static_cast<std::byte>(input.TakeByte());
    if (step == Step::kCut) frame.resize(input.TakeByte() % frame.size());
    if (step == Step::kDrop) frame.clear();
    Append(wire, frame);
    if (step == Step::kRepeat) Append(wire, frame);
  }
  std::size_t received = 0;
  for (std::size_t at = 0; at < wire.size();) {
    const std::size_t piece = std::min<std::size_t>(1 + at % 97, wire.size() - at);
    receiver.Feed(std::span(wire).subspan(at, piece));
    at += piece;
    while (const auto message = receiver.Next()) {
      Require(received < sealed.size() && *message == sealed[received]);
      ++received;
    }
  }
}

}  // namespace
}  // namespace orca::net

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  orca::FuzzInput input(data, size);
  try {
    orca::net::Exchange(input);
  } catch (const orca::Error& error) {
    orca::Require(error.code() == orca::Code::kUnauthenticated);
  }
  return 0;
}
