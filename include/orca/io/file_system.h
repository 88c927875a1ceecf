// What the engine asks of a file system, so that tests can put one with faults in its place.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "orca/core/export.h"

namespace orca::io {

using Path = std::filesystem::path;

/// How far a write came. Less than was asked for is no error: the caller goes on with the rest.
struct Written {
  std::size_t bytes = 0;
  int error = 0;  ///< An errno; 0 when nothing failed.
};

/// Who may read a new file.
enum class Access {
  kUser,   ///< Mode 0600 whatever the umask.
  kUmask,  ///< The mode that other programs would give it: the user asked for this file.
};

/// A new file that is written from its beginning to its end by one thread. Closed with the object.
class ORCA_API WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual Written Write(std::span<const std::byte> data) = 0;
  /// Returns when the bytes are on the disk.
  virtual void Sync() = 0;
  /// Network file systems report a full disk only here.
  virtual void Close() = 0;
  /// Gives a file of CreateUnnamed a name that is not there yet.
  virtual void Name(const Path& path) = 0;
  /// For code that writes to it by itself; -1 where there is none.
  virtual int fd() const { return -1; }
};

/// The bytes of a file. Changes to them stay in this process.
struct FileView {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;  ///< Keeps the bytes.
};

/// A folder that belongs to its holder until the object goes or the process ends.
class ORCA_API FolderLock {
 public:
  virtual ~FolderLock() = default;
};

/// The calls that files are written and read with. Any thread may use it.
///
/// What fails throws the error of ThrowFileError. A change of a folder (a new name, a rename, a
/// removal) is durable when SyncFolder has returned.
class ORCA_API FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// Makes a file that is not there yet.
  virtual std::unique_ptr<WritableFile> Create(const Path& path, Access access) = 0;
  /// Makes a file in a folder that is gone with its object until it gets a name. Null where the
  /// file system has no such files, and where none can be made: Create says why.
  virtual std::unique_ptr<WritableFile> CreateUnnamed(const Path& folder, Access access) = 0;
  /// Maps a whole file. Whoever shortens a file under its readers kills them: replace it instead.
  virtual FileView Map(const Path& path) = 0;
  /// Replaces a file or an empty folder at `to`.
  virtual void Rename(const Path& from, const Path& to) = 0;
  /// Removes a file or an empty folder; false when there is none.
  virtual bool Remove(const Path& path) = 0;
  /// Makes a folder, mode 0700; false when it is there.
  virtual bool MakeFolder(const Path& path) = 0;
  /// The names in a folder, sorted; none when there is no such folder.
  virtual std::vector<std::string> List(const Path& folder) = 0;
  virtual void SyncFolder(const Path& folder) = 0;
  /// Nothing when somebody else holds the folder, or when it is not there.
  virtual std::unique_ptr<FolderLock> TryLock(const Path& folder) = 0;
  /// Letters that nobody else has: for names of temporary files.
  virtual std::string UniqueWord() = 0;
};

/// The operating system's. Never destroyed.
ORCA_API FileSystem& RealFiles();

/// Throws "cannot `doing` `path`: <text of error>; <remedy>": kResourceExhausted where the disk, a
/// quota, descriptors or memory ran out, else kUnavailable.
[[noreturn]] ORCA_API void ThrowFileError(const std::string& doing, const Path& path, int error);

}  // namespace orca::io
