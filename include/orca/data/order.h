// The order in which an epoch visits the rows of a dataset.
#pragma once

#include <cstdint>
#include <optional>

#include "orca/core/export.h"

namespace orca::data {

/// A shuffle of 0 … size-1 that needs no table: position to row, and back, in constant time.
///
/// A Feistel network over the next power of four, walked until it lands inside. The same key gives
/// the same shuffle everywhere and for ever; the tests hold some of them fast. Not for secrets.
class ORCA_API Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t key);

  std::uint64_t size() const { return size_; }
  /// The row at `position`, which must be below size().
  std::uint64_t operator()(std::uint64_t position) const;
  /// The position of `row`, which must be below size().
  std::uint64_t PositionOf(std::uint64_t row) const;

 private:
  static constexpr int kMaxRounds = 12;

  std::uint64_t size_;
  int half_bits_;
  int rounds_;
  std::uint64_t half_mask_;
  std::uint64_t keys_[kMaxRounds];
};

/// A shuffle for data that is read in blocks of consecutive rows, as from files: the blocks come in
/// a random order, and only the rows of `window_blocks` neighbours in that order are mixed with
/// each other. A reader that holds one window in memory reads every block once.
class ORCA_API BlockPermutation {
 public:
  /// `block_rows` and `window_blocks` must be positive, `size` at most kMaxRows. The last block may
  /// be short.
  BlockPermutation(std::uint64_t size, std::uint64_t key, std::uint64_t block_rows,
                   std::uint64_t window_blocks);

  /// The row at `position`, which must be below the size.
  std::uint64_t operator()(std::uint64_t position) const;

 private:
  std::uint64_t key_;
  std::uint64_t block_rows_;
  Permutation blocks_;
  std::uint64_t window_blocks_;
  std::uint64_t missing_;       // rows that the last block lacks
  std::uint64_t short_at_;      // where the last block comes among the blocks
  std::uint64_t short_window_;  // and in which window
};

/// More rows than any memory or disk holds; what is below can be counted without an overflow.
inline constexpr std::uint64_t kMaxRows = std::uint64_t{1} << 62;

/// What decides the batches of one rank in one epoch.
struct OrderOptions {
  std::uint64_t rows = 0;
  std::uint64_t batch_size = 1;  ///< Rows of one step, of all ranks together.
  bool shuffle = true;
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  int rank = 0;
  int world_size = 1;
  int ranks = 1;                     ///< How many ranks from this one on, whose shares are one.
  std::uint64_t least_rows = 0;      ///< A rank has so many rows of a step or none; 0: any number.
  std::uint64_t start = 0;           ///< The cursor: how many rows of the epoch are behind us.
  std::uint64_t block_rows = 0;      ///< Shuffle in blocks of so many rows; 0: row by row.
  std::uint64_t window_blocks = 16;  ///< Blocks whose rows are mixed with each other.
};

/// A part of the rows of a step, or of the positions of an epoch.
struct RowRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// The share of the ranks in the `rows` of a step, which are divided as evenly as it goes: the
/// first ranks take one row more. With `least_rows` there may be fewer shares than ranks; then the
/// ranks that have one lie evenly among the others. Fewer rows than that are one share.
ORCA_API RowRange ShareOf(std::uint64_t rows, const OrderOptions& options);

/// The batches of one rank in one epoch.
///
/// A step takes the next batch_size positions of the epoch and divides them among the ranks, see
/// ShareOf. So every row is in exactly one batch of
/// one rank, all ranks make equally many steps, and the rows of a step are the same for any number
/// of ranks. What was done is one number, the cursor: an epoch goes on there at once, also with
/// other ranks and another batch size. Never changes; any thread may use it.
class ORCA_API EpochOrder {
 public:
  /// Throws kInvalidArgument for a batch size of 0, ranks outside the world, a start behind the
  /// last row, a window of 0 blocks, or more than kMaxRows rows.
  explicit EpochOrder(const OrderOptions& options);

  /// Steps from the start to the end of the epoch.
  std::uint64_t steps() const { return steps_; }
  /// The positions of this rank's batch in `step`; empty behind the last step.
  RowRange Positions(std::uint64_t step) const;
  /// The cursor when `step` steps are done; the number of rows behind the last one.
  std::uint64_t Cursor(std::uint64_t step) const;
  /// The row at a position of the epoch.
  std::uint64_t Row(std::uint64_t position) const {
    if (!options_.shuffle) return position;
    return blocks_ ? (*blocks_)(position) : shuffle_(position);
  }

 private:
  OrderOptions options_;
  Permutation shuffle_;
  std::optional<BlockPermutation> blocks_;
  std::uint64_t steps_ = 0;
};

}  // namespace orca::data
