#include "comm/segment_arena.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/host.h"

namespace orca::comm {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::size_t kPage = 4096;

std::size_t RoundUp(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Ranks read the same place of everybody's array at once. If these were equally far from a page's
// begin, sixteen of them would compete for the eight places that a first-level cache has for such
// lines, at half the speed.
std::size_t Stagger() {
  static std::atomic<std::size_t> segments{0};
  const std::size_t number = segments.fetch_add(1) + static_cast<std::size_t>(::getpid());
  return number * 21 % (kPage / kAlign) * kAlign;
}

}  // namespace

std::shared_ptr<Arena> Arena::Create() { return std::make_shared<SegmentArena>(); }

void* SegmentArena::Allocate(std::size_t bytes) {
  if (bytes > std::numeric_limits<std::size_t>::max() / 2) {
    throw Error(Code::kInvalidArgument,
                fmt::format("an array of {} bytes does not fit any memory", bytes));
  }
  const std::size_t wanted = RoundUp(std::max<std::size_t>(bytes, 1), kAlign);
  const std::lock_guard lock(mutex_);
  for (const auto& segment : segments_) {
    if (void* memory = Take(*segment, wanted)) return memory;
  }
  auto segment = std::make_unique<Segment>();
  const std::size_t size = RoundUp(std::max(wanted, kSegmentBytes), kPage) + kPage;
  CheckMemoryFor(wanted, "an array in shared memory");
  segment->memory = SharedMemory::Create("orca-arena", size);
  segment->index = static_cast<std::uint32_t>(segments_.size());
  const std::size_t begin = Stagger();
  segment->free.emplace(begin, size - begin);
  by_address_.emplace(reinterpret_cast<std::uintptr_t>(segment->memory.data()), segment->index);
  segments_.push_back(std::move(segment));
  return Take(*segments_.back(), wanted);
}

void* SegmentArena::Take(Segment& segment, std::size_t bytes) {
  const auto fits = std::find_if(segment.free.begin(), segment.free.end(),
                                 [bytes](const auto& range) { return range.second >= bytes; });
  if (fits == segment.free.end()) return nullptr;
  const auto [offset, length] = *fits;
  if (offset + bytes > segment.touched) {
    CheckMemoryFor(offset + bytes - std::max(segment.touched, offset), "an array in shared memory");
    segment.touched = offset + bytes;
  }
  segment.free.erase(fits);
  if (length > bytes) segment.free.emplace(offset + bytes, length - bytes);
  segment.used.emplace(offset, bytes);
  return segment.memory.data() + offset;
}

void SegmentArena::Free(void* memory) {
  if (memory == nullptr) return;
  const auto place = Find(memory, 1);
  const std::lock_guard lock(mutex_);
  Segment* segment = place ? segments_[place->segment].get() : nullptr;
  const auto used = segment != nullptr ? segment->used.find(place->offset)
                                       : std::map<std::size_t, std::size_t>::iterator{};
  if (segment == nullptr || used == segment->used.end()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{} did not come from this arena, or was freed before", memory));
  }
  auto [offset, length] = *used;
  segment->used.erase(used);
  const auto after = segment->free.lower_bound(offset);
  if (after != segment->free.end() && after->first == offset + length) {
    length += after->second;
    segment->free.erase(after);
  }
  const auto next = segment->free.lower_bound(offset);
  if (next != segment->free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += length;
      return;
    }
  }
  segment->free.emplace(offset, length);
}

bool SegmentArena::Contains(const void* memory, std::size_t bytes) const {
  return Find(memory, bytes).has_value();
}

std::optional<SegmentArena::Place> SegmentArena::Find(const void* memory, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const auto look = [&](const Segment& segment) -> std::optional<Place> {
    // An address below the segment gives a huge offset.
    const auto offset = address - reinterpret_cast<std::uintptr_t>(segment.memory.data());
    const std::size_t size = segment.memory.size();
    if (offset >= size || bytes > size - offset) return std::nullopt;
    return Place{.segment = segment.index, .offset = offset};
  };
  if (const Segment* recent = recent_.load(std::memory_order_acquire)) {
    if (const auto place = look(*recent)) return place;
  }
  const std::shared_lock lock(mutex_);
  auto next = by_address_.upper_bound(address);
  if (next == by_address_.begin()) return std::nullopt;
  const Segment& segment = *segments_[std::prev(next)->second];
  const auto place = look(segment);
  if (place) recent_.store(&segment, std::memory_order_release);
  return place;
}

SegmentArena::Descriptor SegmentArena::segment(std::uint32_t index) const {
  const std::shared_lock lock(mutex_);
  if (index >= segments_.size()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("there is no segment {}; the arena has {}", index, segments_.size()));
  }
  return {.fd = segments_[index]->memory.fd(), .bytes = segments_[index]->memory.size()};
}

}  // namespace orca::comm
