// Reads any bytes as an event file, and as an event of one.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "input.h"
#include "io/event_record.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  std::size_t seen = 0;
  const auto visit = [&](std::string_view tag, const orca::io::Scalar&) {
    orca::Require(tag.size() <= size);
    orca::Require(++seen <= 2 * size);
  };
  orca::io::VisitScalars(bytes, visit);
  orca::io::RecordReader reader(bytes);
  while (const auto event = reader.Next()) {
    orca::Require(event->size() <= size);
    orca::io::VisitScalars(*event, visit);
  }
  orca::Require(reader.offset() <= size);
  return 0;
}
