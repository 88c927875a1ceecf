// Takes any bytes for a file of torch.save, as they are and as the pickle of a file with a storage.
// What is accepted is sound and, written again, comes back as it was.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "input.h"
#include "io/torch_parser.h"
#include "io/zip_file.h"
#include "orca/core/error.h"
#include "tensors.h"

namespace orca::io {
namespace {

void RequireSoundValue(const TorchValue& value) {
  if (value.kind == TorchValue::Kind::kTensor) RequireSound(value.tensor);
  for (const TorchValue& item : value.items) RequireSoundValue(item);
}

bool Same(const TorchValue& a, const TorchValue& b) {
  return a.kind == b.kind && a.flag == b.flag && a.whole == b.whole &&
         std::bit_cast<std::uint64_t>(a.number) == std::bit_cast<std::uint64_t>(b.number) &&
         a.text == b.text && a.tensor.spec == b.tensor.spec &&
         std::ranges::equal(a.tensor.data, b.tensor.data) &&
         std::ranges::equal(a.items, b.items, Same);
}

class Bytes {
 public:
  ByteSink sink() {
    return [this](std::span<const std::byte> more) {
      bytes_.insert(bytes_.end(), more.begin(), more.end());
    };
  }
  std::span<const std::byte> view() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

void Read(std::span<const std::byte> bytes) {
  try {
    const TorchFile file = ParseTorchFile("fuzz", {bytes, nullptr});
    RequireSoundValue(file.value);
    Bytes again;
    EncodeTorchFile(file.value, again.sink());
    Require(Same(ParseTorchFile("fuzz", {again.view(), nullptr}).value, file.value));
  } catch (const Error& error) {
    Require(error.code() == Code::kUnavailable || error.code() == Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace orca::io

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  orca::io::Read(bytes);
  orca::io::Bytes framed;
  orca::io::ZipWriter zip(framed.sink());
  zip.Add("x/data.pkl", bytes);
  zip.Add("x/data/0", "twenty-four bytes of it.");
  zip.Finish();
  orca::io::Read(framed.view());
  return 0;
}
