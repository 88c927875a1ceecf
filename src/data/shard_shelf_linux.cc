#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/log.h"
#include "orca/core/memory_file.h"
#include "orca/core/mutant.h"
#include "orca/data/shard_home.h"

namespace orca::data {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPage = 4096;
// How much may wait to be used again: a part of what may be given out.
constexpr std::size_t kFreePart = 8;
constexpr std::chrono::seconds kFreeAge(10);
// So little may always wait: to ask how much memory there is takes longer than to make it anew.
constexpr std::size_t kLittle = std::size_t{16} << 20;

// Memory is used again for a shard that fills at least three quarters of it.
bool Fits(std::size_t size, std::size_t wanted) { return size >= wanted && wanted >= size / 4 * 3; }

// Pages that were promised and are not taken yet.
std::size_t Untouched(int fd, std::size_t size) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return 0;
  const std::size_t taken = static_cast<std::size_t>(info.st_blocks) * 512;
  return size - std::min(size, taken);
}

class Shelf final : public ShardShelf {
 public:
  explicit Shelf(ShelfOptions options)
      : limit_(options.limit),
        spill_(std::move(options.spill)),
        tell_(std::move(options.tell)),
        forks_(ForkCount()),
        last_id_(options.first_id) {}

  ShardMemory New(std::size_t bytes, Backing backing) override {
    const std::size_t wanted = (std::max<std::size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
    CheckOwner();
    const std::lock_guard lock(mutex_);
    GiveBackLocked(kFreeAge);
    // The latest: its pages are the likeliest to be in the caches.
    const auto found = std::find_if(free_.rbegin(), free_.rend(), [&](const Free& free) {
      return Fits(free.size, wanted) && IsWithinLimit(free.size, backing);
    });
    Entry entry{.size = wanted, .holds = 1};
    if (found != free_.rend()) {
      entry.fd = std::move(found->fd);
      entry.size = found->size;
      free_.erase(std::next(found).base());
      free_bytes_ -= entry.size;
    } else {
      CheckDescriptors();
      if (IsWithinLimit(wanted, backing) && HasRoom(wanted, backing)) {
        entry.fd = MakeMemoryFile("orca-shard", wanted);
        unfilled_.push_back(last_id_ + 1);
      } else {
        entry.fd = MakeFile(wanted, backing);
        entry.in_memory = false;
      }
    }
    ShardMemory memory = ToWrite(++last_id_, entry);
    Count(entry) += entry.size;
    entries_.emplace(memory.id, std::move(entry));
    return memory;
  }

  ShardMemory Open(std::uint64_t id) override {
    CheckOwner();
    const std::lock_guard lock(mutex_);
    const Entry& entry = Find(id);
    return {.id = id, .fd = OpenReadOnly(entry.fd.get()), .size = entry.size};
  }

  ShardMemory OpenToWrite(std::uint64_t id) override {
    CheckOwner();
    const std::lock_guard lock(mutex_);
    return ToWrite(id, Find(id));
  }

  void Hold(std::uint64_t id) noexcept override {
    if (ForkCount() != forks_) return;
    const std::lock_guard lock(mutex_);
    if (const auto found = entries_.find(id); found != entries_.end()) ++found->second.holds;
  }

  void Drop(std::uint64_t id, Reuse reuse) noexcept override {
    if (ForkCount() != forks_) return;
    try {
      const std::lock_guard lock(mutex_);
      const auto found = entries_.find(id);
      if (found == entries_.end()) return;
      if (reuse == Reuse::kNo) found->second.reusable = false;
      if (--found->second.holds > 0) return;
      Entry entry = std::move(found->second);
      entries_.erase(found);
      Count(entry) -= entry.size;
      // A file without a name is quickly made; one that is kept takes room on the disk.
      if (!entry.reusable || !entry.in_memory) return;
      free_bytes_ += entry.size;
      free_.push_back({std::move(entry.fd), entry.size, Clock::now()});
      while (HasTooMuchFree()) GiveBackFirst();
    } catch (const std::exception& error) {
      Log(LogLevel::kWarning, fmt::format("shard {} was not dropped: {}", id, error.what()));
    }
  }

  void Adopt(std::uint64_t id, UniqueFd fd) override {
    const std::size_t size = CheckMemoryFile(fd.get());
    const std::lock_guard lock(mutex_);
    if (const auto found = entries_.find(id); found != entries_.end()) {
      ++found->second.holds;
      return;
    }
    const bool in_memory = IsInMemory(fd.get());
    Entry entry{
        .fd = std::move(fd), .size = size, .holds = 1, .reusable = false, .in_memory = in_memory};
    Count(entry) += size;
    entries_.emplace(id, std::move(entry));
  }

  bool Has(std::uint64_t id) const override {
    const std::lock_guard lock(mutex_);
    return entries_.contains(id);
  }

  void GiveBack(std::chrono::milliseconds age) override {
    const std::lock_guard lock(mutex_);
    GiveBackLocked(age);
  }

  Usage usage() const override {
    const std::lock_guard lock(mutex_);
    return {.shards = entries_.size(), .held = held_, .free = free_bytes_, .files = file_bytes_};
  }

 private:
  struct Entry {
    UniqueFd fd;
    std::size_t size = 0;
    std::size_t holds = 0;
    bool reusable = true;
    bool in_memory = true;
  };
  struct Free {
    UniqueFd fd;
    std::size_t size = 0;
    Clock::time_point since;
  };

  const Entry& Find(std::uint64_t id) const {
    const auto found = entries_.find(id);
    if (found != entries_.end()) return found->second;
    throw Error(Code::kInvalidArgument,
                fmt::format("shard {} is not here; it was dropped, or is of another context", id));
  }

  // The caller writes through a description of its own; the entry's stays.
  static ShardMemory ToWrite(std::uint64_t id, const Entry& entry) {
    ShardMemory memory{.id = id, .fd = UniqueFd(::dup(entry.fd.get())), .size = entry.size};
    if (!memory.fd) throw Error(Code::kResourceExhausted, DescribeLimitError(errno));
    return memory;
  }

  // A forked child sees the same memory; what it took for new would be the parent's.
  void CheckOwner() const {
    if (ForkCount() == forks_) return;
    throw Error(Code::kFailedPrecondition,
                "this process was forked, and the shards belong to its parent; make what it needs "
                "before the fork, or read it through views made there");
  }

  bool HasTooMuchFree() const {
    if (limit_ > 0) return free_bytes_ > limit_ / kFreePart;
    return free_bytes_ > kLittle && free_bytes_ > AvailableMemory().bytes / kFreePart;
  }

  void GiveBackFirst() {
    free_bytes_ -= free_.front().size;
    free_.pop_front();
  }

  void GiveBackLocked(std::chrono::milliseconds age) {
    while (!free_.empty() && Clock::now() - free_.front().since >= age) GiveBackFirst();
  }

  // A process without descriptors cannot even say so.
  void CheckDescriptors() {
    constexpr std::size_t kSpare = 128;
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    if (entries_.size() + free_.size() + kSpare < limit.rlim_cur) return;
    while (!free_.empty()) GiveBackFirst();
    if (entries_.size() + kSpare < limit.rlim_cur) return;
    throw Error(
        Code::kResourceExhausted,
        fmt::format("no room for another shard: each of the {} here is an open file, of which "
                    "RLIMIT_NOFILE allows {}, and {} are kept for other uses; put larger shards, "
                    "or raise the limit with 'ulimit -n'",
                    entries_.size(), limit.rlim_cur, kSpare));
  }

  std::size_t& Count(const Entry& entry) { return entry.in_memory ? held_ : file_bytes_; }

  bool IsWithinLimit(std::size_t bytes, Backing backing) const {
    return limit_ == 0 || backing == Backing::kMemory || held_ + bytes <= limit_;
  }

  // Bytes that were promised and are not taken yet.
  std::size_t Promised() {
    std::size_t promised = 0;
    std::erase_if(unfilled_, [&](std::uint64_t id) {
      const auto found = entries_.find(id);
      if (found == entries_.end()) return true;
      const std::size_t left = Untouched(found->second.fd.get(), found->second.size);
      promised += left;
      return left == 0;
    });
    return promised;
  }

  bool HasRoom(std::size_t bytes, Backing backing) {
    const std::size_t promised = IsMutant("promised") ? 0 : Promised();
    const auto has_room = [&] {
      const std::size_t available = AvailableMemory().bytes;
      const std::size_t left = available - std::min(available, promised);
      // The other half is for those who work with the shards.
      const bool takes_all = limit_ > 0 || backing == Backing::kMemory;
      return takes_all ? bytes <= left : held_ + bytes <= (held_ + left) / 2;
    };
    if (has_room()) return true;
    // Before memory is refused, none of it waits unused.
    while (!free_.empty()) GiveBackFirst();
    return has_room();
  }

  // For what does not fit into memory.
  UniqueFd MakeFile(std::size_t bytes, Backing backing) {
    const MemoryLeft left = AvailableMemory();
    std::string refusal =
        fmt::format("a shard of {} does not fit into memory: ", HumanBytes(bytes));
    if (IsWithinLimit(bytes, backing)) {
      refusal += fmt::format("{} leaves {}, shards have {}", left.limit, HumanBytes(left.bytes),
                             HumanBytes(held_));
    } else {
      refusal +=
          fmt::format("{} of the {} for shards are in use", HumanBytes(held_), HumanBytes(limit_));
    }
    if (backing == Backing::kMemory)
      throw Error(Code::kResourceExhausted, refusal + "; drop some, or raise the limit");
    try {
      DiskFile file = MakeDiskFile(bytes, spill_);
      if (!std::exchange(has_told_, true))
        Tell(refusal + "; it and others go to files in " + file.folder);
      return std::move(file.fd);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}; {}, drop some, or give the context more memory",
                                            refusal, error.what()));
    }
  }

  void Tell(const std::string& text) const {
    if (tell_) return tell_(text);
    Log(LogLevel::kWarning, text);
  }

  const std::size_t limit_;
  const std::string spill_;
  const std::function<void(const std::string&)> tell_;
  const std::uint64_t forks_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::uint64_t last_id_;
  std::map<std::uint64_t, Entry> entries_;
  std::deque<Free> free_;                // oldest first
  std::vector<std::uint64_t> unfilled_;  // may have pages that are not taken yet
  std::size_t held_ = 0;                 // in memory
  std::size_t free_bytes_ = 0;
  std::size_t file_bytes_ = 0;
  bool has_told_ = false;
};

}  // namespace

std::shared_ptr<ShardShelf> ShardShelf::Create(ShelfOptions options) {
  return std::make_shared<Shelf>(std::move(options));
}

}  // namespace orca::data
