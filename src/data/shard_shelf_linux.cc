#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/log.h"
#include "orca/core/memory_file.h"
#include "orca/data/shard_home.h"

namespace orca::data {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPage = 4096;
// How much may wait to be used again: a part of what may be given out.
constexpr std::size_t kFreePart = 8;
constexpr std::chrono::seconds kFreeAge(10);

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
  Shelf(std::uint64_t first_id, std::size_t limit)
      : limit_(limit), forks_(ForkCount()), last_id_(first_id) {}

  ShardMemory New(std::size_t bytes) override {
    const std::size_t wanted = (std::max<std::size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
    CheckOwner();
    const std::lock_guard lock(mutex_);
    GiveBackLocked(kFreeAge);
    // The latest: its pages are the likeliest to be in the caches.
    const auto found = std::find_if(free_.rbegin(), free_.rend(), [&](const Free& free) {
      return Fits(free.size, wanted) && (limit_ == 0 || held_ + free.size <= limit_);
    });
    Entry entry;
    entry.holds = 1;
    if (found != free_.rend()) {
      entry.fd = std::move(found->fd);
      entry.size = found->size;
      free_.erase(std::next(found).base());
      free_bytes_ -= entry.size;
    } else {
      CheckDescriptors();
      CheckRoom(wanted);
      entry.fd = MakeMemoryFile("orca-shard", wanted);
      entry.size = wanted;
      unfilled_.push_back(last_id_ + 1);
    }
    ShardMemory memory = ToWrite(++last_id_, entry);
    held_ += entry.size;
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
      held_ -= entry.size;
      if (!entry.reusable) return;
      free_bytes_ += entry.size;
      free_.push_back({std::move(entry.fd), entry.size, Clock::now()});
      while (free_bytes_ > FreeLimit()) GiveBackFirst();
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
    held_ += size;
    entries_.emplace(id, Entry{.fd = std::move(fd), .size = size, .holds = 1, .reusable = false});
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
    return {.shards = entries_.size(), .held = held_, .free = free_bytes_};
  }

 private:
  struct Entry {
    UniqueFd fd;
    std::size_t size = 0;
    std::size_t holds = 0;
    bool reusable = true;
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

  std::size_t FreeLimit() const {
    return (limit_ > 0 ? limit_ : AvailableMemory().bytes) / kFreePart;
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
        fmt::format("{} shards are as many as the limit of {} open files allows; put larger "
                    "ones, or raise it with 'ulimit -n'",
                    entries_.size(), limit.rlim_cur));
  }

  void CheckRoom(std::size_t bytes) {
    if (limit_ > 0 && held_ + bytes > limit_) {
      throw Error(
          Code::kResourceExhausted,
          fmt::format("a shard of {} does not fit: {} of the {} for shards are in use; drop "
                      "some, or give the context more memory",
                      HumanBytes(bytes), HumanBytes(held_), HumanBytes(limit_)));
    }
    std::size_t promised = 0;
    std::erase_if(unfilled_, [&](std::uint64_t id) {
      const auto found = entries_.find(id);
      if (found == entries_.end()) return true;
      const std::size_t left = Untouched(found->second.fd.get(), found->second.size);
      promised += left;
      return left == 0;
    });
    // Before memory is refused, none of it waits unused.
    if (!free_.empty() && AvailableMemory().bytes < bytes + promised) {
      while (!free_.empty()) GiveBackFirst();
    }
    CheckMemoryFor(bytes + promised, "a shard");
  }

  const std::size_t limit_;
  const std::uint64_t forks_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::uint64_t last_id_;
  std::map<std::uint64_t, Entry> entries_;
  std::deque<Free> free_;                // oldest first
  std::vector<std::uint64_t> unfilled_;  // may have pages that are not taken yet
  std::size_t held_ = 0;
  std::size_t free_bytes_ = 0;
};

}  // namespace

std::shared_ptr<ShardShelf> ShardShelf::Create(std::uint64_t first_id, std::size_t limit) {
  return std::make_shared<Shelf>(first_id, limit);
}

}  // namespace orca::data
