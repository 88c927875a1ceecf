// A folder of checkpoints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "orca/core/export.h"
#include "orca/io/checkpoint.h"
#include "orca/io/file_system.h"

namespace orca::io {

struct StoreOptions {
  /// How many checkpoints to keep: older ones go when a newer one is complete. 0 keeps all.
  std::size_t keep_last = 0;
  /// Gets a line for every checkpoint that is passed over; without it the line is logged.
  std::function<void(const std::string&)> warn = {};
};

/// Writes and finds checkpoints in `<folder>/model.<iteration>`.
///
/// A checkpoint is completely there or not there: it is written under a temporary name, read again,
/// and renamed; only then older ones go. One object writes to a folder at a time; any number of
/// processes may read. One thread at a time.
class ORCA_API CheckpointStore {
 public:
  /// Removes what writers that died have left. The folder is made when something is saved.
  explicit CheckpointStore(Path folder, StoreOptions options = {}, FileSystem& files = RealFiles());

  /// Returns when the checkpoint is on the disk. It takes the place of one with the same iteration.
  /// When it throws, all older checkpoints are there as before.
  void Save(const CheckpointContent& content);

  /// The iterations of all checkpoints, ascending. They may still turn out to be damaged.
  std::vector<std::uint64_t> List() const;
  /// The newest one that is whole; those that are not are passed over with a warning. Nothing when
  /// there is none. Throws kFailedPrecondition when the newest is of a newer release: going on
  /// with an older one would lose work silently.
  std::optional<Checkpoint> Latest() const;
  Checkpoint Open(std::uint64_t iteration) const;

  Path PathOf(std::uint64_t iteration) const;
  const Path& folder() const { return folder_; }

 private:
  void TryCleanUp();
  void CleanUp();
  void PutInPlace(const Path& written, const Path& wanted);
  void RemoveOld(std::uint64_t newest);
  void MoveAside(const Path& path);

  Path folder_;
  StoreOptions options_;
  FileSystem& files_;
};

}  // namespace orca::io
