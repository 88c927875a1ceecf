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

/// Writes into a file without a name; Commit gives it its name. Whatever happens, readers of `path`
/// see what was there before, or all of the new bytes.
///
/// One thread; several objects may write to one path, and the last Commit wins. Without a Commit
/// nothing is left, also of a process that is killed. Where the file system has no files without
/// names (NFS, some FUSE) it is written under a temporary one, ".tmp-<16 letters>", which a process
/// that is killed leaves behind.
class ORCA_API AtomicFile {
 public:
  AtomicFile(FileSystem& files, Path path, Access access = Access::kUser);
  explicit AtomicFile(Path path, Access access = Access::kUser)
      : AtomicFile(RealFiles(), std::move(path), access) {}
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Appends all of `data`.
  void Write(std::span<const std::byte> data);
  void Write(std::string_view text) { Write(std::as_bytes(std::span(text))); }
  /// Returns when the file and its name are on the disk.
  void Commit();
  /// Returns when readers see it: a machine that stops may lose it, a process that is killed
  /// cannot.
  void CommitUnsynced();

  /// For code that appends by itself; -1 where there is none.
  int fd() const { return file_->fd(); }
  /// Bytes that Write has written so far.
  std::uint64_t size() const { return size_; }

 private:
  FileSystem& files_;
  Path path_;
  Path temporary_;
  bool has_temporary_ = false;  // a file of this name is there
  std::unique_ptr<WritableFile> file_;
  std::uint64_t size_ = 0;
};

}  // namespace orca::io
