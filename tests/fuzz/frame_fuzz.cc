// Decodes 64 bytes, as they are and with a magic and a checksum that fit. What decodes must encode
// to the same bytes.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "input.h"
#include "orca/core/crc32c.h"
#include "orca/core/error.h"
#include "orca/net/frame.h"

namespace orca::net {
namespace {

using Wire = std::array<std::byte, kFrameHeaderBytes>;

void RoundTrip(const Wire& wire) {
  try {
    const FrameHeader header = Decode(wire);
    Require(header.length <= kMaxFramePayload);
    Wire again;
    Encode(header, again);
    Require(again == wire);
  } catch (const Error& error) {
    Require(error.code() == Code::kPeerLost);
  }
}

// As a sender with a bug would.
void MakePlausible(Wire& wire) {
  Wire valid;
  Encode(FrameHeader(), valid);
  std::copy_n(valid.begin(), 4, wire.begin());
  const std::uint32_t crc = Crc32c(wire.data() + 8, wire.size() - 8);
  for (std::size_t i = 0; i < 4; ++i) wire[4 + i] = static_cast<std::byte>(crc >> (8 * i));
}

}  // namespace
}  // namespace orca::net

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  orca::FuzzInput input(data, size);
  orca::net::Wire wire{};
  const auto bytes = input.TakeBytes(wire.size());
  std::copy(bytes.begin(), bytes.end(), wire.begin());
  orca::net::RoundTrip(wire);
  orca::net::MakePlausible(wire);
  orca::net::RoundTrip(wire);
  return 0;
}
