// Registered memory: arrays that all ranks of a host can map.
#pragma once

#include <cstddef>
#include <memory>

#include "orca/core/export.h"

namespace orca::comm {

/// Memory of this process that peers on the same host map, so that collectives reduce it in place
/// without a copy.
///
/// Backed by memfds: nothing is left behind when the process dies. Any thread may use it. Memory
/// that is given back is used again before new pages are asked for. The arena must outlive what was
/// allocated from it.
class ORCA_API Arena {
 public:
  static std::shared_ptr<Arena> Create();
  virtual ~Arena() = default;

  /// Returns `bytes` of zeroed or recycled memory, 64-byte aligned. Throws kResourceExhausted when
  /// the cgroup's limit or the machine's memory does not allow it (computed before a page is
  /// touched).
  virtual void* Allocate(std::size_t bytes) = 0;
  /// Gives memory back that came from Allocate.
  virtual void Free(void* memory) = 0;
  /// Whether all of [memory, memory + bytes) lies in this arena.
  virtual bool Contains(const void* memory, std::size_t bytes) const = 0;
};

}  // namespace orca::comm
