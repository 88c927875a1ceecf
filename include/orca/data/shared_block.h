// Shared memory that changes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "orca/core/export.h"
#include "orca/core/shared_memory.h"
#include "orca/data/shard_home.h"

namespace orca::data {

/// Memory of a home that several processes of one machine read and write: the weights of a model
/// that learns. It outlives the processes that fill it, as long as somebody holds it; who writes
/// what when is for its users to arrange. Any thread may use it.
class ORCA_API SharedBlock : public std::enable_shared_from_this<SharedBlock> {
 public:
  /// New memory of zeroes. Throws kResourceExhausted, naming the limit, when there is not enough.
  static std::shared_ptr<SharedBlock> Create(const std::shared_ptr<ShardHome>& home,
                                             std::size_t bytes);
  /// A block that was made elsewhere on this machine.
  static std::shared_ptr<SharedBlock> Open(std::shared_ptr<const ShardHold> hold);

  const std::shared_ptr<const ShardHold>& hold() const { return hold_; }
  /// At least as many as were asked for, from a border of pages on.
  std::span<std::byte> bytes() const { return {memory_.data(), memory_.size()}; }

 private:
  SharedBlock(std::shared_ptr<const ShardHold> hold, ShardMemory memory);

  std::shared_ptr<const ShardHold> hold_;
  SharedMemory memory_;
};

}  // namespace orca::data
