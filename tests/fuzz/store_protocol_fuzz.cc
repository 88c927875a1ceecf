// What a store's client or server may send once it is authenticated. What decodes must encode to
// the same bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "comm/store_protocol.h"
#include "input.h"
#include "orca/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orca;
  using namespace orca::comm;
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    Require(std::ranges::equal(Encode(DecodeStoreRequest(bytes)), bytes));
  } catch (const Error& error) {
    Require(error.code() == Code::kPeerLost);
  }
  try {
    Require(std::ranges::equal(Encode(DecodeStoreReply(bytes)), bytes));
  } catch (const Error& error) {
    Require(error.code() == Code::kPeerLost);
  }
  return 0;
}
