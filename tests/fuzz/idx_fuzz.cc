// Takes any bytes for an IDX file, also a zipped one.
#include <cstddef>
#include <cstdint>
#include <span>

#include "io/array_parsers.h"
#include "orca/core/error.h"
#include "tensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    orca::io::FileView view{std::as_bytes(std::span(data, size)), nullptr};
    if (orca::io::IsGzip(view.bytes)) view = orca::io::Unzip("fuzz", view.bytes);
    orca::io::RequireSound(orca::io::ParseIdx("fuzz", view).tensor);
  } catch (const orca::Error& error) {
    orca::Require(error.code() == orca::Code::kUnavailable ||
                  error.code() == orca::Code::kResourceExhausted);
  }
  return 0;
}
