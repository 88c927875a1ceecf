// Shared memory that is filled like a file.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "orca/core/export.h"
#include "orca/core/unique_fd.h"

namespace orca {

/// Makes a file of `bytes` zeroes in memory, without a name: nothing is left behind when its users
/// die. Its size is sealed: nobody can shrink it under a reader. `label` shows in /proc/PID/maps.
/// Throws kResourceExhausted when descriptors run out; it does not reserve memory (see
/// CheckMemoryFor).
ORCA_API UniqueFd MakeMemoryFile(const std::string& label, std::size_t bytes);

/// A file on a disk, without a name: nothing is left behind when its users die.
struct DiskFile {
  UniqueFd fd;
  std::string folder;
};
/// Makes a file of `bytes`, and takes the room for them. Empty `folder`: $ORCA_SPILL, or else the
/// first of $ORCA_HOME (~/.orca), $TMPDIR and /var/tmp that can take it. No file of a disk can be
/// sealed: whoever may write it must not shrink it. Throws kResourceExhausted, naming each folder
/// and why not, before anything is written.
ORCA_API DiskFile MakeDiskFile(std::size_t bytes, const std::string& folder = "");

/// Whether it is a file of MakeMemoryFile, or of a disk.
ORCA_API bool IsInMemory(int fd);

/// The size of a file that another process made; throws kPeerLost unless it is sealed, or of
/// MakeDiskFile.
ORCA_API std::size_t CheckMemoryFile(int fd);

/// Opens the file again, so that whoever gets the new descriptor can read and nothing else.
ORCA_API UniqueFd OpenReadOnly(int fd);

/// Bytes, and where they go.
struct FilePiece {
  std::span<const std::byte> data;
  std::size_t at = 0;
};
/// Copies `pieces` into the file; in memory, much at a time into huge pages where the kernel gives
/// them, and by several threads. Throws kResourceExhausted when there is no room.
ORCA_API void WriteMemoryFile(int fd, std::span<const FilePiece> pieces);

/// Has a file's bytes read from its disk, and does not wait for them.
ORCA_API void AskForPages(const std::byte* begin, std::size_t bytes);

/// A mapping of a whole file. What its owner writes to it stays in this process: those pages are
/// copied. Any thread may read it.
class ORCA_API PrivateMapping {
 public:
  /// `size` must be within the file and above 0. The mapping lives without the descriptor.
  PrivateMapping(int fd, std::size_t size);
  PrivateMapping() = default;
  PrivateMapping(PrivateMapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  PrivateMapping& operator=(PrivateMapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~PrivateMapping();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace orca
