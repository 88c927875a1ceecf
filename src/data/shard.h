// What a store holds, as loaders see it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "orca/core/shared_memory.h"
#include "orca/data/array_store.h"

namespace orca::data {

/// Consecutive rows of all columns, in one piece of memory. Never changes once it is in a store.
struct Shard {
  std::uint64_t first_row = 0;
  std::uint64_t rows = 0;
  SharedMemory memory;
  std::vector<const std::byte*> columns;
};

/// The columns and shards at one moment: never changed, replaced by Put.
struct Content {
  std::vector<ColumnSpec> specs;
  std::vector<std::shared_ptr<const Shard>> shards;
  std::uint64_t rows = 0;

  /// The shard of a row that exists; empty shards are passed over.
  const Shard& ShardOf(std::uint64_t row) const {
    const auto next = std::upper_bound(
        shards.begin(), shards.end(), row,
        [](std::uint64_t wanted, const auto& shard) { return wanted < shard->first_row; });
    return **std::prev(next);
  }
};

}  // namespace orca::data
