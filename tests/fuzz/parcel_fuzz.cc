// Takes any bytes for a parcel. What is accepted lies inside of them, and packs to the same parts.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "input.h"
#include "orca/core/error.h"
#include "orca/runtime/parcel.h"

namespace orca::runtime {
namespace {

void Open(std::vector<std::byte> bytes) {
  try {
    const Parcel parcel = Parcel::FromBytes(std::move(bytes));
    const auto all = parcel.bytes();
    const auto parts = parcel.Parts();
    std::vector<std::span<const std::byte>> views;
    for (const auto part : parts) {
      Require(part.data() >= all.data() && part.data() + part.size() <= all.data() + all.size());
      views.emplace_back(part);
    }
    const Parcel again = Parcel::Pack(views);
    Require(again.Parts().size() == parts.size());
  } catch (const Error& error) {
    Require(error.code() == Code::kPeerLost);
  }
}

}  // namespace
}  // namespace orca::runtime

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  orca::runtime::Open({bytes, bytes + size});
  return 0;
}
