#include "io/checkpoint_write.h"

#include <algorithm>
#include <memory>

#include "io/file_tools.h"
#include "io/manifest.h"
#include "io/safetensors_layout.h"
#include "orca/core/crc32c.h"
#include "orca/core/mutant.h"

namespace orca::io {
namespace {

// Fits the caches, so that bytes come from memory once for two checksums and the copy.
constexpr std::size_t kPiece = std::size_t{1} << 18;

/// A file and the checksum of what was written to it.
class ChecksummedFile {
 public:
  ChecksummedFile(FileSystem& files, Path path)
      : path_(std::move(path)), file_(files.Create(path_, Access::kUser)) {}

  /// Returns the checksum of `data` alone.
  std::uint32_t Write(std::span<const std::byte> data) {
    std::uint32_t own = 0;
    while (!data.empty()) {
      const auto piece = data.first(std::min(kPiece, data.size()));
      own = Crc32c(piece.data(), piece.size(), own);
      crc_ = Crc32c(piece.data(), piece.size(), crc_);
      WriteAll(*file_, piece, path_);
      size_ += piece.size();
      data = data.subspan(piece.size());
    }
    return own;
  }

  void Finish() {
    if (!IsMutant("checkpoint-fsync")) file_->Sync();
    file_->Close();
  }

  std::uint32_t crc() const { return crc_; }
  std::uint64_t size() const { return size_; }

 private:
  Path path_;
  std::unique_ptr<WritableFile> file_;
  std::uint32_t crc_ = 0;
  std::uint64_t size_ = 0;
};

ManifestFile WritePart(const std::string& part, std::span<const Tensor> tensors, const Path& folder,
                       FileSystem& files) {
  const SafetensorsLayout layout = LayOutSafetensors(tensors, {{"format", "pt"}});
  ManifestFile said{.part = part};
  ChecksummedFile file(files, folder / (part + kPartSuffix));
  said.header_crc = file.Write(std::as_bytes(std::span(layout.head)));
  for (const Tensor* tensor : layout.order) {
    ManifestTensor& entry = said.tensors.emplace_back();
    entry.spec = tensor->spec;
    entry.offset = file.size();
    entry.crc = file.Write(tensor->data);
  }
  file.Finish();
  said.bytes = file.size();
  said.crc = file.crc();
  return said;
}

}  // namespace

void WriteCheckpoint(const CheckpointContent& content, const Path& folder, FileSystem& files) {
  Manifest manifest{.progress = content.progress, .files = {}, .fields = content.fields};
  (void)EncodeManifest(manifest);  // Fields that cannot be written are found before the work.
  for (const auto& [part, tensors] : content.parts) CheckPartName(part);
  for (const auto& [part, tensors] : content.parts)
    manifest.files.push_back(WritePart(part, tensors, folder, files));
  ChecksummedFile file(files, folder / kManifestName);
  const std::string text = EncodeManifest(manifest);
  file.Write(std::as_bytes(std::span(text)));
  file.Finish();
  if (!IsMutant("checkpoint-fsync-names")) files.SyncFolder(folder);
}

}  // namespace orca::io
