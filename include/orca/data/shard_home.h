// Where the memory of shards comes from.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "orca/core/export.h"
#include "orca/core/host.h"
#include "orca/core/unique_fd.h"

namespace orca::data {

/// The memory of one shard: a sealed file in memory (see MakeMemoryFile), or a file of a disk (see
/// MakeDiskFile).
struct ShardMemory {
  std::uint64_t id = 0;
  UniqueFd fd;
  std::size_t size = 0;  ///< At least what was asked for.
};

/// Whether memory may be used again. Not when a child that the holder forked may still read it.
enum class Reuse { kYes, kNo };

/// What memory may be made of: what is written again and again stays off the disks.
enum class Backing { kAny, kMemory };

/// Owns the memory of shards, and uses it again when nobody holds a shard any more. Any thread may
/// use it.
class ORCA_API ShardHome : public std::enable_shared_from_this<ShardHome> {
 public:
  virtual ~ShardHome() = default;
  /// Memory for a new shard, with anything in it. The caller fills it, and holds it once. Throws
  /// kResourceExhausted, naming the limit, when there is not enough.
  virtual ShardMemory New(std::size_t bytes, Backing backing = Backing::kAny) = 0;
  /// One more hold of a shard that somebody holds. Never waits, never throws; Open tells when there
  /// was no such shard.
  virtual void Hold(std::uint64_t id) noexcept = 0;
  /// Ends one hold. Never waits, never throws.
  virtual void Drop(std::uint64_t id, Reuse reuse = Reuse::kYes) noexcept = 0;
  /// A shard that the caller holds, for reading only. Throws kInvalidArgument when there is none of
  /// that number.
  virtual ShardMemory Open(std::uint64_t id) = 0;
  /// The same for reading and writing, see SharedBlock; only of this node.
  virtual ShardMemory OpenToWrite(std::uint64_t id) = 0;
};

/// Keeps a shard from being dropped. Any thread may use it.
class ORCA_API ShardHold : public std::enable_shared_from_this<ShardHold> {
 public:
  /// One more hold.
  static std::shared_ptr<const ShardHold> Take(std::shared_ptr<ShardHome> home, std::uint64_t id) {
    home->Hold(id);
    return Adopt(std::move(home), id);
  }
  /// A hold that is counted already.
  static std::shared_ptr<const ShardHold> Adopt(std::shared_ptr<ShardHome> home, std::uint64_t id) {
    return std::shared_ptr<const ShardHold>(new ShardHold(std::move(home), id));
  }
  ShardHold(const ShardHold&) = delete;
  ShardHold& operator=(const ShardHold&) = delete;
  ~ShardHold() { home_->Drop(id_, ChildCount() == children_ ? Reuse::kYes : Reuse::kNo); }

  std::uint64_t id() const { return id_; }
  const std::shared_ptr<ShardHome>& home() const { return home_; }

 private:
  ShardHold(std::shared_ptr<ShardHome> home, std::uint64_t id) : home_(std::move(home)), id_(id) {}

  std::shared_ptr<ShardHome> home_;
  std::uint64_t id_;
  std::uint64_t children_ = ChildCount();
};

struct ShelfOptions {
  std::uint64_t first_id = 0;  ///< The numbers of its shards begin behind it.
  std::size_t limit = 0;       ///< Memory for shards; 0: half of what is free. More go to files ...
  std::string spill = {};      ///< ... in this folder; empty: see MakeDiskFile.
  /// Is told once that there are files; null: the log. Called by whoever makes the first.
  std::function<void(const std::string& text)> tell = nullptr;
};

/// A home in this process, and in no child that it forks.
class ORCA_API ShardShelf : public ShardHome {
 public:
  static std::shared_ptr<ShardShelf> Create(ShelfOptions options = {});

  /// Takes in the memory of a shard of another home, and holds it.
  virtual void Adopt(std::uint64_t id, UniqueFd fd) = 0;
  virtual bool Has(std::uint64_t id) const = 0;
  /// Gives memory back that nobody has used for `age`.
  virtual void GiveBack(std::chrono::milliseconds age) = 0;

  struct Usage {
    std::size_t shards = 0;
    std::size_t held = 0;   ///< Bytes of shards in memory.
    std::size_t free = 0;   ///< Bytes of memory that wait to be used again.
    std::size_t files = 0;  ///< Bytes of shards in files.
  };
  virtual Usage usage() const = 0;
};

}  // namespace orca::data
