// A file that is completely there or not there at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "orca/core/export.h"
#include "orca/io/file_system.h"

namespace orca::io {

/// Writes beside `path` under a temporary name; Commit gives it its name. Whatever happens, readers
/// of `path` see what was there before, or all of the new bytes. Mode 0600.
///
/// One thread. Without a Commit the temporary file goes with the object.
class ORCA_API AtomicFile {
 public:
  AtomicFile(FileSystem& files, Path path);
  explicit AtomicFile(Path path) : AtomicFile(RealFiles(), std::move(path)) {}
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Appends all of `data`.
  void Write(std::span<const std::byte> data);
  void Write(std::string_view text) { Write(std::as_bytes(std::span(text))); }
  /// Returns when the file and its name are on the disk.
  void Commit();

  /// Bytes written so far.
  std::uint64_t size() const { return size_; }

 private:
  FileSystem& files_;
  Path path_;
  Path temporary_;
  std::unique_ptr<WritableFile> file_;
  std::uint64_t size_ = 0;
};

}  // namespace orca::io
