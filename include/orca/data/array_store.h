// Arrays in shared memory, and batches of their rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "orca/core/export.h"
#include "orca/data/shard.h"

namespace orca::data {

/// float32 instead of what the column holds (uint8 or float64): value · scale + shift.
struct ToFloat32 {
  float scale = 1.0F;
  float shift = 0.0F;
};

struct BatchOptions {
  std::uint64_t batch_size = 1;  ///< Rows of one step, of all ranks together.
  bool shuffle = true;
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  int rank = 0;
  int world_size = 1;
  int ranks = 1;                     ///< How many ranks from this one on, whose shares are one.
  std::uint64_t least_rows = 0;      ///< A rank has so many rows of a step or none; 0: any number.
  std::uint64_t start = 0;           ///< Where to go on: the cursor of the last batch.
  std::uint64_t block_rows = 0;      ///< Shuffle in blocks of so many rows; 0: row by row.
  std::uint64_t window_blocks = 16;  ///< Blocks whose rows are mixed with each other.
  int ahead = 4;    ///< Batches that are gathered before they are asked for; 0: when asked for.
  int threads = 1;  ///< That gather ahead.
  std::vector<std::optional<ToFloat32>> conversions;  ///< One a column, or empty.
};

/// One batch. The memory of each column begins with a cache line.
struct Batch {
  std::uint64_t rows = 0;
  std::uint64_t cursor = 0;  ///< Rows of the epoch behind this step: where a restart goes on.
  std::vector<Column> columns;
};

/// Gives the batches of one rank in one epoch, in order. One thread at a time may use it.
class ORCA_API BatchLoader {
 public:
  virtual ~BatchLoader() = default;
  /// The next batch; null at the end. Its memory stays as it is until the last pointer to it goes,
  /// and is used again then.
  virtual std::shared_ptr<const Batch> Next() = 0;
  /// Steps from the start to the end of the epoch.
  virtual std::uint64_t steps() const = 0;
};

/// Shards that hold the same columns, as one long table.
///
/// Any thread may use it at any time; loaders keep what was there when they were made.
class ORCA_API ArrayStore {
 public:
  /// Shards that Put makes live in `home`, by default in this process. Throws kInvalidArgument when
  /// there is no column, or a row's shape is negative or too large.
  static std::unique_ptr<ArrayStore> Create(std::vector<ColumnSpec> columns,
                                            std::shared_ptr<ShardHome> home = nullptr);
  virtual ~ArrayStore() = default;

  /// Copies `rows` rows into a new shard.
  virtual void Put(std::uint64_t rows, std::span<const Column> columns) = 0;
  /// Adds the rows of a shard, without a copy. Its columns must be those of the store.
  virtual void Add(std::shared_ptr<const Shard> shard) = 0;
  virtual const std::vector<ColumnSpec>& columns() const = 0;
  virtual std::uint64_t rows() const = 0;
  virtual std::vector<std::shared_ptr<const Shard>> shards() const = 0;
  /// Throws kInvalidArgument for options out of range, or a column that cannot be converted.
  virtual std::unique_ptr<BatchLoader> Batches(const BatchOptions& options) const = 0;
};

}  // namespace orca::data
