// Takes any text for the manifest of a checkpoint, as it is and with a checksum that fits. What is
// accepted can be written again and says the same.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "input.h"
#include "io/manifest.h"
#include "orca/core/crc32c.h"
#include "orca/core/error.h"

namespace orca::io {
namespace {

void Read(std::string_view text) {
  try {
    const Manifest manifest = DecodeManifest(text, "fuzz");
    const Manifest again = DecodeManifest(EncodeManifest(manifest), "again");
    Require(again.progress == manifest.progress && again.fields == manifest.fields);
    Require(again.files.size() == manifest.files.size());
    for (const ManifestFile& file : manifest.files) CheckPartName(file.part);
  } catch (const Error& error) {
    Require(error.code() == Code::kUnavailable || error.code() == Code::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace orca::io

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  orca::io::Read(text);
  char crc[9];
  std::snprintf(crc, sizeof crc, "%08x", orca::Crc32c(text.data(), text.size()));
  orca::io::Read("{\"crc32c\":\"" + std::string(crc) + "\",\"checkpoint\":" + text + "}\n");
  return 0;
}
