// Reads any bytes as an event log, as they are and as one record with a checksum that fits.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "input.h"
#include "orca/core/crc32c.h"
#include "orca/core/error.h"
#include "orca/runtime/event_log.h"

namespace orca::runtime {
namespace {

void Read(const std::vector<std::byte>& bytes) {
  const UniqueFd file(::memfd_create("log", MFD_CLOEXEC));
  Require(::write(file.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  EventReader reader("/proc/self/fd/" + std::to_string(file.get()));
  std::size_t records = 0;
  while (const auto record = reader.Next()) {
    Require(++records <= bytes.size());
    Require(!Encode(*record).empty());
  }
}

std::vector<std::byte> AsRecord(const std::vector<std::byte>& body) {
  std::vector<std::byte> record(8 + body.size());
  const auto length = static_cast<std::uint32_t>(body.size());
  const std::uint32_t crc = Crc32c(body.data(), body.size());
  std::memcpy(record.data(), &length, sizeof length);
  std::memcpy(record.data() + 4, &crc, sizeof crc);
  if (!body.empty()) std::memcpy(record.data() + 8, body.data(), body.size());
  return record;
}

}  // namespace
}  // namespace orca::runtime

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> input(bytes, bytes + size);
  orca::runtime::Read(input);
  orca::runtime::Read(orca::runtime::AsRecord(input));
  return 0;
}
