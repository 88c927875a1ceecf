// Sends any bytes to a process that expects a message.
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

#include "input.h"
#include "orca/core/error.h"
#include "runtime/link.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using orca::runtime::UnixLink;
  if (size == 0 || size > 65536) return 0;
  auto [raw, end] = UnixLink::Pair();
  UnixLink link(std::move(end));
  orca::Require(::send(raw.get(), data, size, 0) == static_cast<ssize_t>(size));
  try {
    const auto message = link.Receive();
    orca::Require(message && message->head.is_object());
    message->parcel.Parts();
  } catch (const orca::Error& error) {
    orca::Require(error.code() == orca::Code::kPeerLost);
  }
  return 0;
}
