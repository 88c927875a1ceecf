// Files of named tensors in the format of the safetensors package.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "orca/core/export.h"
#include "orca/io/file_system.h"
#include "orca/io/tensor.h"

namespace orca::io {

/// Texts that a file holds beside its tensors.
using Metadata = std::map<std::string, std::string>;

/// Writes a file that is completely there or not there; tensors with large elements come first, so
/// that all are aligned. Throws kInvalidArgument for names that are double, reserved or not UTF-8.
ORCA_API void WriteSafetensors(const Path& path, std::span<const Tensor> tensors,
                               const Metadata& metadata = {}, FileSystem& files = RealFiles());

/// A file that was opened: its header is checked, its tensors are views of the mapped file.
///
/// Any thread may read it. The views live as long as `owner()`.
class ORCA_API SafetensorsFile {
 public:
  /// Throws kUnavailable, with the reason, the tensor and the offset, when the file is damaged.
  static SafetensorsFile Open(const Path& path, FileSystem& files = RealFiles());
  /// The same for bytes that were read already; `path` is for messages.
  static SafetensorsFile Parse(const Path& path, FileView view);

  /// In the order of their data.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  /// Throws kInvalidArgument when there is no tensor of that name.
  const Tensor& Find(std::string_view name) const;
  const Metadata& metadata() const { return metadata_; }
  /// Where the data begin: what is before is the header.
  std::uint64_t data_offset() const { return data_offset_; }
  std::span<const std::byte> bytes() const { return view_.bytes; }
  const std::shared_ptr<const void>& owner() const { return view_.owner; }

 private:
  SafetensorsFile() = default;

  Path path_;
  FileView view_;
  std::uint64_t data_offset_ = 0;
  std::vector<Tensor> tensors_;
  Metadata metadata_;
};

}  // namespace orca::io
