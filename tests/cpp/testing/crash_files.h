// A file system in memory that fails and crashes where a test says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "orca/io/file_system.h"

namespace orca::testing {

/// Thrown at the crash, and by every call after it. No Error: nobody handles it.
struct Crash {};

/// What of the things that were not synced is on the disk after a crash.
enum class CrashMode {
  kLost,    ///< Nothing.
  kKept,    ///< All of it.
  kTorn,    ///< All names; of each 512 bytes of data the old, the new, or none.
  kRandom,  ///< Any of the changes of names, and data as with kTorn.
};

/// The calls that change something.
enum class Change {
  kCreate,
  kWrite,
  kSync,
  kClose,
  kRename,
  kRemove,
  kMakeFolder,
  kSyncFolder,
  kName
};

/// Remembers what a disk would: data from Sync on, names from SyncFolder on. A rename is there
/// completely or not at all. Every change counts as one step. One thread.
class CrashFiles final : public io::FileSystem {
 public:
  CrashFiles();

  /// The machine stops in the n-th step from now, which still gets as far as memory.
  void CrashAt(std::uint64_t step) { crash_at_ = steps_ + step; }
  /// The n-th step from now, and those after it up to `count` in all, fail with `error`.
  void FailAt(std::uint64_t step, int error, std::uint64_t count = 1);
  /// Writes take at most `bytes`, and each second one is interrupted first. 0: no more.
  void CutWrites(std::size_t bytes) { longest_write_ = bytes; }
  /// Whether files can be without a name, as most file systems have it.
  void HaveUnnamed(bool is_on) { has_unnamed_ = is_on; }
  /// The disk is full when all files together have so many bytes.
  void SetRoom(std::uint64_t bytes) { room_ = bytes; }
  std::uint64_t steps() const { return steps_; }
  /// How many of the steps were of each kind; those that there were.
  const std::map<Change, std::uint64_t>& counts() const { return counts_; }
  bool crashed() const { return crashed_; }

  /// What the next boot finds.
  std::unique_ptr<CrashFiles> Reboot(CrashMode mode, std::uint64_t seed) const;

  /// Changes a file in place.
  std::vector<std::byte>& Content(const io::Path& path);

  std::unique_ptr<io::WritableFile> Create(const io::Path& path, io::Access access) override;
  std::unique_ptr<io::WritableFile> CreateUnnamed(const io::Path& folder,
                                                  io::Access access) override;
  io::FileView Map(const io::Path& path) override;
  void Rename(const io::Path& from, const io::Path& to) override;
  bool Remove(const io::Path& path) override;
  bool MakeFolder(const io::Path& path) override;
  std::vector<std::string> List(const io::Path& folder) override;
  void SyncFolder(const io::Path& folder) override;
  std::unique_ptr<io::FolderLock> TryLock(const io::Path& folder) override;
  std::string UniqueWord() override;

 private:
  class File;
  class Lock;
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  using Names = std::map<std::string, NodePtr>;
  struct Naming {
    std::string removed;  // empty: nothing
    std::string added;    // empty: nothing
    NodePtr node;
  };
  struct Node {
    bool is_folder = false;
    std::vector<std::byte> data;
    std::vector<std::byte> durable_data;
    Names names;
    Names durable_names;
    std::vector<Naming> changes;  // not synced
    bool is_locked = false;
  };

  static void Apply(const Naming& change, Names& names);
  static NodePtr AfterCrash(const Node& node, CrashMode mode, std::mt19937_64& random);
  NodePtr Find(const io::Path& path) const;
  NodePtr FindFolder(const io::Path& path, const char* doing) const;
  int Step(Change change);
  void Step(Change change, const char* doing, const io::Path& path);
  void CheckCrash();
  void Do(const NodePtr& folder, const Naming& change);
  std::uint64_t Used(const Node& node) const;

  NodePtr root_;
  std::uint64_t steps_ = 0;
  std::map<Change, std::uint64_t> counts_;
  std::uint64_t crash_at_ = 0;
  std::uint64_t fail_from_ = 0;
  std::uint64_t fail_until_ = 0;
  int fail_error_ = 0;
  std::size_t longest_write_ = 0;
  bool was_interrupted_ = false;
  bool has_unnamed_ = true;
  std::optional<std::uint64_t> room_;
  bool crashed_ = false;
  std::uint64_t words_ = 0;
};

}  // namespace orca::testing
