// Takes any bytes for an NPY file.
#include <cstddef>
#include <cstdint>
#include <span>

#include "io/array_parsers.h"
#include "orca/core/error.h"
#include "tensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    orca::io::RequireSound(
        orca::io::ParseNpy("fuzz", {std::as_bytes(std::span(data, size)), nullptr}).tensor);
  } catch (const orca::Error& error) {
    orca::Require(error.code() == orca::Code::kUnavailable ||
                  error.code() == orca::Code::kInvalidArgument);
  }
  return 0;
}
