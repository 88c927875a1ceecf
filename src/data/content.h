// What a store holds, as loaders see it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "orca/data/shard.h"

namespace orca::data {

/// A shard and its place among the others.
struct StoredShard {
  std::uint64_t first_row = 0;
  std::shared_ptr<const Shard> shard;
  std::vector<const std::byte*> values;  ///< Of each column.
};

/// The columns and shards at one moment: never changed, replaced by Put.
struct Content {
  std::vector<ColumnSpec> specs;
  std::vector<std::shared_ptr<const StoredShard>> shards;
  std::uint64_t rows = 0;

  /// The shard of a row that exists; empty shards are passed over.
  const StoredShard& ShardOf(std::uint64_t row) const {
    const auto next = std::upper_bound(
        shards.begin(), shards.end(), row,
        [](std::uint64_t wanted, const auto& shard) { return wanted < shard->first_row; });
    return **std::prev(next);
  }
};

}  // namespace orca::data
