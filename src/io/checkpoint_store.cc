// Names in the folder: model.<iteration> is a checkpoint; .tmp-<word> one that is being written or
// removed; .old-<iteration>-<word> one that a new one of the same iteration replaces.
#include "orca/io/checkpoint_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "io/checkpoint_write.h"
#include "io/file_tools.h"
#include "orca/core/error.h"
#include "orca/core/log.h"
#include "orca/core/mutant.h"

namespace orca::io {
namespace {

constexpr std::string_view kPrefix = "model.";
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kReplaced = ".old-";

std::optional<std::uint64_t> ParseNumber(std::string_view digits) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  // "007" is not the name that 7 would get.
  if (std::to_string(number) != digits) return std::nullopt;
  return number;
}

std::optional<std::uint64_t> IterationOf(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  return ParseNumber(name.substr(kPrefix.size()));
}

std::optional<std::uint64_t> ReplacedIteration(std::string_view name) {
  if (!name.starts_with(kReplaced)) return std::nullopt;
  name.remove_prefix(kReplaced.size());
  return ParseNumber(name.substr(0, name.find('-')));
}

/// A folder that is being filled: removed unless it is put in its place.
class TemporaryFolder {
 public:
  TemporaryFolder(FileSystem& files, Path path) : files_(files), path_(std::move(path)) {
    files_.MakeFolder(path_);
    // The sign that its writer lives.
    lock_ = files_.TryLock(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    try {
      RemoveFlatFolder(files_, path_);
    } catch (...) {
      // The next store that is opened here removes it.
    }
  }
  const Path& path() const { return path_; }

 private:
  FileSystem& files_;
  Path path_;
  std::unique_ptr<FolderLock> lock_;
};

}  // namespace

CheckpointStore::CheckpointStore(Path folder, StoreOptions options, FileSystem& files)
    : folder_(std::move(folder)), options_(std::move(options)), files_(files) {
  if (!options_.warn)
    options_.warn = [](const std::string& line) { Log(LogLevel::kWarning, line); };
  TryCleanUp();
}

void CheckpointStore::TryCleanUp() {
  try {
    CleanUp();
  } catch (const Error& error) {
    // Whoever may only read finds the checkpoints all the same.
    Log(LogLevel::kDebug, fmt::format("leftovers stay: {}", error.what()));
  }
}

void CheckpointStore::CleanUp() {
  for (const std::string& name : files_.List(folder_)) {
    const auto replaced = ReplacedIteration(name);
    if (!replaced && (!name.starts_with(kTemporary) || IsMutant("leftovers"))) continue;
    const Path path = folder_ / name;
    const auto lock = files_.TryLock(path);
    if (!lock) continue;  // Its writer lives.
    // A writer died between moving the old one away and putting the new one in its place.
    if (replaced && files_.List(PathOf(*replaced)).empty()) {
      files_.Rename(path, PathOf(*replaced));
      files_.SyncFolder(folder_);
    } else if (replaced) {
      MoveAside(path);
    } else {
      RemoveFlatFolder(files_, path);
    }
  }
}

Path CheckpointStore::PathOf(std::uint64_t iteration) const {
  return folder_ / fmt::format("{}{}", kPrefix, iteration);
}

void CheckpointStore::Save(const CheckpointContent& content) {
  MakeFolders(files_, folder_);
  TryCleanUp();  // What an attempt that failed could not remove.
  const Path wanted = PathOf(content.progress.iteration);
  const TemporaryFolder written(files_,
                                folder_ / fmt::format("{}{}", kTemporary, files_.UniqueWord()));
  WriteCheckpoint(content, written.path(), files_);
  (void)Checkpoint::Open(written.path(), files_);
  if (IsMutant("checkpoint-old-first")) RemoveOld(content.progress.iteration);
  PutInPlace(written.path(), wanted);
  RemoveOld(content.progress.iteration);
}

void CheckpointStore::PutInPlace(const Path& written, const Path& wanted) {
  const std::string name = wanted.filename().string();
  const auto names = files_.List(folder_);
  if (!std::ranges::binary_search(names, name)) {
    files_.Rename(written, wanted);
    files_.SyncFolder(folder_);
    return;
  }
  // Two renames, since a folder with files cannot be replaced by one. In between the old one has a
  // name from which CleanUp brings it back.
  const Path aside =
      folder_ / fmt::format("{}{}-{}", kReplaced, name.substr(kPrefix.size()), files_.UniqueWord());
  const auto lock = files_.TryLock(wanted);
  files_.Rename(wanted, aside);
  try {
    if (!IsMutant("checkpoint-fsync-between")) files_.SyncFolder(folder_);
    files_.Rename(written, wanted);
  } catch (const Error&) {
    files_.Rename(aside, wanted);
    throw;
  }
  files_.SyncFolder(folder_);
  MoveAside(aside);
}

// Renamed first and durably: a folder that is half removed must not look like a checkpoint.
void CheckpointStore::MoveAside(const Path& path) {
  const Path aside = folder_ / fmt::format("{}{}", kTemporary, files_.UniqueWord());
  if (IsMutant("checkpoint-aside")) return RemoveFlatFolder(files_, path);
  files_.Rename(path, aside);
  files_.SyncFolder(folder_);
  RemoveFlatFolder(files_, aside);
}

void CheckpointStore::RemoveOld(std::uint64_t newest) {
  if (options_.keep_last == 0) return;
  std::vector<std::uint64_t> all = List();
  // The one just written stays even where training began anew below older ones.
  std::erase(all, newest);
  const std::size_t keep = options_.keep_last - 1;
  for (std::size_t i = 0; i + keep < all.size(); ++i) {
    try {
      MoveAside(PathOf(all[i]));
    } catch (const Error& error) {
      // The new one is complete: that an old one stays is no failure of it.
      options_.warn(fmt::format("an old checkpoint stays: {}", error.what()));
      return;
    }
  }
}

std::vector<std::uint64_t> CheckpointStore::List() const {
  std::vector<std::uint64_t> iterations;
  for (const std::string& name : files_.List(folder_))
    if (const auto iteration = IterationOf(name)) iterations.push_back(*iteration);
  std::ranges::sort(iterations);
  return iterations;
}

std::optional<Checkpoint> CheckpointStore::Latest() const {
  std::vector<std::uint64_t> iterations = List();
  for (; !iterations.empty(); iterations.pop_back()) {
    try {
      return Open(iterations.back());
    } catch (const Error& error) {
      if (error.code() == Code::kFailedPrecondition) throw;
      options_.warn(
          fmt::format("checkpoint {} is passed over: {}", iterations.back(), error.what()));
    }
  }
  return std::nullopt;
}

Checkpoint CheckpointStore::Open(std::uint64_t iteration) const {
  Checkpoint checkpoint = Checkpoint::Open(PathOf(iteration), files_);
  if (checkpoint.progress().iteration != iteration) {
    throw Error(Code::kUnavailable,
                fmt::format("{} holds iteration {}; it was renamed, or files of another checkpoint "
                            "lie in it",
                            PathOf(iteration).string(), checkpoint.progress().iteration));
  }
  return checkpoint;
}

}  // namespace orca::io
