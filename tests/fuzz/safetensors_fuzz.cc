// Takes any bytes for a safetensors file, as they are and as a header with a length that fits. What
// is accepted covers the file exactly, and can be written again.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "input.h"
#include "io/safetensors_layout.h"
#include "orca/core/error.h"
#include "orca/io/safetensors.h"
#include "tensors.h"

namespace orca::io {
namespace {

void Read(std::span<const std::byte> bytes) {
  try {
    const SafetensorsFile file = SafetensorsFile::Parse("fuzz", {bytes, nullptr});
    std::size_t total = file.data_offset();
    for (const Tensor& tensor : file.tensors()) {
      RequireSound(tensor);
      Require(LiesIn(tensor, bytes));
      total += tensor.data.size();
    }
    Require(total == bytes.size());
    Require(LayOutSafetensors(file.tensors(), file.metadata()).order.size() ==
            file.tensors().size());
  } catch (const Error& error) {
    Require(error.code() == Code::kUnavailable);
  }
}

}  // namespace
}  // namespace orca::io

// The first byte says how many bytes at the end are data.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  orca::io::Read({bytes, size});
  if (size == 0) return 0;
  const std::size_t tail = std::min<std::size_t>(data[0], size - 1);
  const std::uint64_t length = size - 1 - tail;
  std::vector<std::byte> framed(sizeof length);
  std::memcpy(framed.data(), &length, sizeof length);
  framed.insert(framed.end(), bytes + 1, bytes + size);
  orca::io::Read(framed);
  return 0;
}
