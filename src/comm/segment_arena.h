// The arena behind orca::comm::Arena, with what the engine needs to hand its memory to peers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "orca/comm/arena.h"
#include "orca/core/shared_memory.h"

namespace orca::comm {

/// Memory in segments of at least kSegmentBytes, each a memfd. First fit, neighbours are joined
/// when they are freed. Segments stay until the arena goes, so a peer may keep them mapped.
class SegmentArena final : public Arena {
 public:
  static constexpr std::size_t kSegmentBytes = std::size_t{64} << 20;

  struct Place {
    std::uint32_t segment = 0;
    std::uint64_t offset = 0;
  };

  void* Allocate(std::size_t bytes) override;
  void Free(void* memory) override;
  bool Contains(const void* memory, std::size_t bytes) const override;

  /// Where [memory, memory + bytes) lies, if all of it is in one segment.
  std::optional<Place> Find(const void* memory, std::size_t bytes) const;
  /// The descriptor and size of a segment, for a peer; throws kInvalidArgument when there is no
  /// such segment.
  struct Descriptor {
    int fd = -1;
    std::uint64_t bytes = 0;
  };
  Descriptor segment(std::uint32_t index) const;

 private:
  struct Segment {
    std::uint32_t index = 0;
    SharedMemory memory;
    std::map<std::size_t, std::size_t> free;  // offset to length; neighbours are never both free
    std::map<std::size_t, std::size_t> used;
    std::size_t touched = 0;  // pages below have been handed out before
  };

  static void* Take(Segment& segment, std::size_t bytes);

  mutable std::atomic<const Segment*> recent_{nullptr};  // found last; segments stay
  mutable std::shared_mutex mutex_;                      // guards all below
  std::vector<std::unique_ptr<Segment>> segments_;
  std::map<std::uintptr_t, std::uint32_t> by_address_;  // first byte to segment
};

}  // namespace orca::comm
