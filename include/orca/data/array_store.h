// Arrays in shared memory, and batches of their rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "orca/core/dtype.h"
#include "orca/core/export.h"

namespace orca::data {

/// One column: rows of the same type and shape.
struct ColumnSpec {
  std::string name;  ///< For messages.
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> row_shape;  ///< Without the row dimension; empty for one element.

  ORCA_API std::size_t row_elements() const;
  std::size_t row_bytes() const { return row_elements() * SizeOf(dtype); }
};

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
  std::uint64_t start = 0;           ///< Where to go on: the cursor of the last batch.
  std::uint64_t block_rows = 0;      ///< Shuffle in blocks of so many rows; 0: row by row.
  std::uint64_t window_blocks = 16;  ///< Blocks whose rows are mixed with each other.
  int ahead = 4;    ///< Batches that are gathered before they are asked for; 0: when asked for.
  int threads = 1;  ///< That gather ahead.
  std::vector<std::optional<ToFloat32>> conversions;  ///< One a column, or empty.
};

/// One batch: one buffer a column, each with `rows` rows behind each other, that begins with a
/// cache line.
struct Batch {
  std::uint64_t rows = 0;
  std::uint64_t cursor = 0;  ///< Rows of the epoch behind this step: where a restart goes on.
  std::vector<std::span<const std::byte>> columns;
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

/// Columns of equally many rows, in shards. Every shard is one piece of shared memory.
///
/// Any thread may use it at any time; loaders keep what was there when they were made.
class ORCA_API ArrayStore {
 public:
  /// Throws kInvalidArgument when there is no column, or a row's shape is negative or too large.
  static std::unique_ptr<ArrayStore> Create(std::vector<ColumnSpec> columns);
  virtual ~ArrayStore() = default;

  /// Copies `rows` rows into a new shard; `columns` are the columns' bytes.
  virtual void Put(std::uint64_t rows, std::span<const std::span<const std::byte>> columns) = 0;
  virtual const std::vector<ColumnSpec>& columns() const = 0;
  virtual std::uint64_t rows() const = 0;
  virtual std::size_t shards() const = 0;
  virtual std::uint64_t rows_of(std::size_t shard) const = 0;
  /// A column of a shard. The memory lives as long as the pointer.
  virtual std::shared_ptr<const std::byte> View(std::size_t shard, std::size_t column) const = 0;
  /// Throws kInvalidArgument for options out of range, or a column that cannot be converted.
  virtual std::unique_ptr<BatchLoader> Batches(const BatchOptions& options) const = 0;
};

}  // namespace orca::data
