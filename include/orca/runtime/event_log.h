// What happened in a run, on disk: written by one process, read by any.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "orca/core/export.h"
#include "orca/core/unique_fd.h"

namespace orca::runtime {

/// One thing that happened, as words and values.
struct Record {
  double time = 0;   ///< Seconds since 1970.
  std::string what;  ///< "context", "call", "worker", "output", "failed", "ended" ...
  int rank = -1;
  std::string text;
  std::map<std::string, double> numbers;
};

/// An append-only file of records. A record that was cut off by a crash is skipped by readers, and
/// so is what follows it. Not thread-safe.
class ORCA_API EventLog {
 public:
  /// Appends to `path`, which must not exist; mode 0600.
  static EventLog Create(const std::filesystem::path& path);
  void Append(const Record& record);

 private:
  explicit EventLog(UniqueFd file) : file_(std::move(file)) {}
  UniqueFd file_;
};

/// Reads a log from its beginning, and goes on when more is there. Not thread-safe.
class ORCA_API EventReader {
 public:
  explicit EventReader(const std::filesystem::path& path);
  /// The next whole record; nothing when there is none yet.
  std::optional<Record> Next();
  /// Whether the rest is damaged: nothing more will come.
  bool damaged() const { return damaged_; }

 private:
  UniqueFd file_;
  std::vector<std::byte> buffer_;
  std::size_t used_ = 0;
  bool damaged_ = false;
};

/// A record as bytes: length (u32), CRC32C (u32), MessagePack.
ORCA_API std::vector<std::byte> Encode(const Record& record);

/// The folder of all runs: $ORCA_HOME/runs, or ~/.orca/runs.
ORCA_API std::filesystem::path RunsFolder();

/// A folder of one run, kept while it lives: RunsFolder()/ID with the log in it.
struct RunFolder {
  std::string id;
  std::filesystem::path path;
};
/// Makes the folder of a new run (0700) and removes the oldest ones beyond the last `keep`.
ORCA_API RunFolder NewRunFolder(const std::string& id, std::size_t keep = 100);
/// Runs, oldest first.
ORCA_API std::vector<RunFolder> ListRuns();
/// The run whose id begins with `prefix`. Throws kInvalidArgument when none or several do.
ORCA_API RunFolder FindRun(const std::string& prefix);

/// What is known of a run from its log and from the process that writes it.
struct RunState {
  std::string id;
  double began = 0;
  std::string door;   ///< The Unix socket of a running one.
  std::string state;  ///< "running", "stopped", or "lost": its driver died.
  int driver = -1;    ///< Process number.
  int cores = 0;
  int calls = 0;  ///< The number of the last one noted.
  int failed = 0;
};
ORCA_API RunState Summarize(const RunFolder& run);

}  // namespace orca::runtime
