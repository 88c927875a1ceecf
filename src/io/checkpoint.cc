#include "orca/io/checkpoint.h"

#include <fmt/format.h>

#include <map>
#include <string_view>
#include <utility>

#include "io/manifest.h"
#include "orca/core/crc32c.h"
#include "orca/core/error.h"
#include "orca/core/mutant.h"

namespace orca::io {
namespace {

std::uint32_t CrcOf(std::span<const std::byte> bytes) { return Crc32c(bytes.data(), bytes.size()); }

[[noreturn]] void ThrowDamaged(const Path& path, const std::string& why) {
  throw Error(Code::kUnavailable, fmt::format("{} is damaged: {}", path.string(), why));
}

void CheckTensorBytes(const Path& path, const SafetensorsFile& file, const ManifestTensor& said,
                      const Tensor& found) {
  const auto offset = static_cast<std::uint64_t>(found.data.data() - file.bytes().data());
  if (said.spec != found.spec || (said.offset != offset && !found.data.empty())) {
    ThrowDamaged(path, fmt::format("the manifest says that tensor '{}' is {} at offset {}, but in "
                                   "the file it is {} at {}",
                                   said.spec.name, Describe(said.spec), said.offset,
                                   Describe(found.spec), offset));
  }
  const std::uint32_t crc = CrcOf(found.data);
  if (crc == said.crc || IsMutant("checkpoint-crc")) return;
  ThrowDamaged(path, fmt::format("tensor '{}' at offset {} ({} bytes) has the checksum {:08x}, the "
                                 "manifest says {:08x}",
                                 said.spec.name, offset, found.data.size(), crc, said.crc));
}

// What covers the tensor that lies at the end of a file that was cut off.
std::string CutOffAt(const ManifestFile& said, std::uint64_t size) {
  for (const ManifestTensor& tensor : said.tensors) {
    const std::uint64_t bytes = ByteSize(tensor.spec.type, tensor.spec.shape).value_or(0);
    if (tensor.offset + bytes > size)
      return fmt::format("; tensor '{}' at offset {} is the first that is not whole",
                         tensor.spec.name, tensor.offset);
  }
  return "";
}

SafetensorsFile OpenPart(const Path& path, const ManifestFile& said, FileSystem& files) {
  FileView view = files.Map(path);
  if (view.bytes.size() != said.bytes) {
    ThrowDamaged(path, fmt::format("it has {} bytes, the manifest says {}{}", view.bytes.size(),
                                   said.bytes, CutOffAt(said, view.bytes.size())));
  }
  SafetensorsFile file = SafetensorsFile::Parse(path, std::move(view));
  const std::uint32_t header_crc = CrcOf(file.bytes().first(file.data_offset()));
  if (header_crc != said.header_crc) {
    ThrowDamaged(path, fmt::format("its header (offset 0 to {}) has the checksum {:08x}, the "
                                   "manifest says {:08x}",
                                   file.data_offset(), header_crc, said.header_crc));
  }
  if (file.tensors().size() != said.tensors.size()) {
    ThrowDamaged(path, fmt::format("it has {} tensors, the manifest says {}", file.tensors().size(),
                                   said.tensors.size()));
  }
  // By name: empty tensors share one place, so the file has no order of them to compare with.
  std::map<std::string_view, const Tensor*> found;
  for (const Tensor& tensor : file.tensors()) found.emplace(tensor.spec.name, &tensor);
  for (const ManifestTensor& tensor : said.tensors) {
    const auto here = found.find(tensor.spec.name);
    if (here == found.end()) {
      ThrowDamaged(path, fmt::format("it has no tensor '{}', or the manifest names it twice",
                                     tensor.spec.name));
    }
    CheckTensorBytes(path, file, tensor, *here->second);
    found.erase(here);
  }
  return file;
}

}  // namespace

Checkpoint Checkpoint::Open(const Path& folder, FileSystem& files) {
  const FileView text = files.Map(folder / kManifestName);
  Manifest manifest =
      DecodeManifest({reinterpret_cast<const char*>(text.bytes.data()), text.bytes.size()},
                     folder / kManifestName);
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  checkpoint.progress_ = manifest.progress;
  checkpoint.fields_ = std::move(manifest.fields);
  for (const ManifestFile& file : manifest.files) {
    const Path path = folder / (file.part + kPartSuffix);
    if (!checkpoint.parts_.emplace(file.part, OpenPart(path, file, files)).second)
      ThrowDamaged(folder / kManifestName, fmt::format("it has part '{}' twice", file.part));
  }
  return checkpoint;
}

std::vector<std::string> Checkpoint::parts() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : parts_) names.push_back(name);
  return names;
}

const SafetensorsFile& Checkpoint::part(const std::string& name) const {
  const auto found = parts_.find(name);
  if (found != parts_.end()) return found->second;
  throw Error(Code::kInvalidArgument,
              fmt::format("checkpoint {} has no part '{}'; it has {}", folder_.string(), name,
                          fmt::join(parts(), ", ")));
}

void Checkpoint::CheckMatches(const std::string& part_name,
                              std::span<const TensorSpec> expected) const {
  CheckSameTensors(expected, part(part_name).tensors(),
                   fmt::format("checkpoint {}", folder_.string()));
}

}  // namespace orca::io
