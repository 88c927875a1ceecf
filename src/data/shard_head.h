// The first bytes of a shard's memory, which say what is in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "orca/data/shard.h"

namespace orca::data {

/// What is in a shard, and where.
struct ShardHead {
  std::vector<ColumnSpec> specs;
  std::uint64_t rows = 0;
  struct Place {
    std::uint64_t at = 0;
    std::uint64_t bytes = 0;
  };
  /// Where a column's parts lie; an absent one has no bytes.
  struct ColumnPlaces {
    Place values;
    Place offsets;
    Place validity;
  };
  std::vector<ColumnPlaces> places;
  std::uint64_t size = 0;  ///< Of the whole shard.
};
/// Lays out a shard; throws kInvalidArgument when sizes do not fit each other.
ShardHead LayOut(std::span<const ColumnSpec> specs, std::uint64_t rows,
                 std::span<const Column> columns);
std::vector<std::byte> EncodeHead(const ShardHead& head);
/// Throws kPeerLost unless `memory` begins with the head of a shard that lies within it.
ShardHead DecodeHead(std::span<const std::byte> memory);

}  // namespace orca::data
