// One writer of a file.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <utility>

#include "orca/core/unique_fd.h"

namespace orca::tune {

/// Held by one object of one process; ends with the process, however it ends. The lock is on
/// "<file>-lock", which stays: SQLite has locks of its own on the file.
class WriterLock {
 public:
  /// Throws kFailedPrecondition, naming the process that holds it.
  explicit WriterLock(const std::filesystem::path& file);
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;
  ~WriterLock();

 private:
  UniqueFd fd_;
  std::pair<dev_t, ino_t> identity_;
};

}  // namespace orca::tune
