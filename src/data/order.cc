#include "orca/data/order.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "orca/core/error.h"

namespace orca::data {
namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;

// Spreads every bit of `x` over all others (the finaliser of MurmurHash3, a published constant).
std::uint64_t Mix(std::uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccd;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53;
  return x ^ (x >> 33);
}

// What a round of the network adds to a half of `bits` bits, from the other half.
std::uint64_t Scramble(std::uint64_t half, std::uint64_t key, int bits) {
  // The upper bits of a product depend on all bits of both factors.
  std::uint64_t mixed = (half + key) * 0xd6e8feb86659fd93;
  mixed = (mixed ^ (mixed >> 32)) * 0xd6e8feb86659fd93;
  return mixed >> (64 - bits);
}

std::uint64_t EpochKey(std::uint64_t seed, std::uint64_t epoch) {
  return Mix(Mix(seed + kGolden) ^ epoch);
}

std::uint64_t DivideUp(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

OrderOptions Checked(OrderOptions options) {
  if (options.rows > kMaxRows) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{} rows are more than the {} that can be counted; divide the data",
                            options.rows, kMaxRows));
  }
  if (options.batch_size == 0) {
    throw Error(Code::kInvalidArgument,
                "a batch size of 0 never gets through the data; give 1 or more");
  }
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    throw Error(Code::kInvalidArgument,
                fmt::format("rank {} is not in a world of {}; ranks begin at 0", options.rank,
                            options.world_size));
  }
  if (options.ranks < 1 || options.ranks > options.world_size - options.rank) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{} ranks from rank {} on are not in a world of {}; give 1 or more",
                            options.ranks, options.rank, options.world_size));
  }
  if (options.start > options.rows) {
    throw Error(Code::kInvalidArgument,
                fmt::format("start {} is behind the last of {} rows; give the cursor of this data",
                            options.start, options.rows));
  }
  if (options.block_rows != 0 && options.window_blocks == 0) {
    throw Error(Code::kInvalidArgument, "a window of 0 blocks holds no rows; give 1 or more");
  }
  // A larger batch is the same batch, and cannot overflow.
  options.batch_size = std::min(options.batch_size, std::max<std::uint64_t>(options.rows, 1));
  return options;
}

}  // namespace

Permutation::Permutation(std::uint64_t size, std::uint64_t key) : size_(size), keys_{} {
  const int bits = size <= 1 ? 2 : 64 - std::countl_zero(size - 1);
  half_bits_ = (bits + 1) / 2;
  half_mask_ = (std::uint64_t{1} << half_bits_) - 1;
  // With few values to choose from, a round does little: six leave sizes below ten with a bias.
  rounds_ = half_bits_ <= 4 ? kMaxRounds : 6;
  for (int round = 0; round < rounds_; ++round) {
    keys_[round] = Mix(key + static_cast<std::uint64_t>(round) * kGolden);
  }
}

std::uint64_t Permutation::operator()(std::uint64_t position) const {
  std::uint64_t value = position;
  do {
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & half_mask_;
    for (int round = 0; round < rounds_; ++round) {
      const std::uint64_t next = left ^ Scramble(right, keys_[round], half_bits_);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= size_);
  return value;
}

std::uint64_t Permutation::PositionOf(std::uint64_t row) const {
  std::uint64_t value = row;
  do {
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & half_mask_;
    for (int round = rounds_; round-- > 0;) {
      const std::uint64_t before = right ^ Scramble(left, keys_[round], half_bits_);
      right = left;
      left = before;
    }
    value = left << half_bits_ | right;
  } while (value >= size_);
  return value;
}

BlockPermutation::BlockPermutation(std::uint64_t size, std::uint64_t key, std::uint64_t block_rows,
                                   std::uint64_t window_blocks)
    : key_(key),
      // No block and no window is larger than the data, so their products can be counted.
      block_rows_(std::clamp<std::uint64_t>(block_rows, 1, std::max<std::uint64_t>(size, 1))),
      blocks_(DivideUp(size, block_rows_), key),
      window_blocks_(
          std::clamp<std::uint64_t>(window_blocks, 1, std::max<std::uint64_t>(blocks_.size(), 1))),
      missing_(blocks_.size() * block_rows_ - size),
      short_at_(blocks_.size() == 0 ? 0 : blocks_.PositionOf(blocks_.size() - 1)),
      short_window_(short_at_ / window_blocks_) {}

std::uint64_t BlockPermutation::operator()(std::uint64_t position) const {
  // Count as if the short block were full: what comes behind its window moves up.
  const std::uint64_t window_rows = window_blocks_ * block_rows_;
  if (position >= (short_window_ + 1) * window_rows - missing_) position += missing_;
  const std::uint64_t window = position / window_rows;
  const std::uint64_t first = window * window_blocks_;
  const bool has_short = window == short_window_;
  const std::uint64_t rows =
      std::min(window_blocks_, blocks_.size() - first) * block_rows_ - (has_short ? missing_ : 0);
  const Permutation mixed(rows, Mix(key_ ^ Mix(window + kGolden)));
  std::uint64_t at = mixed(position - window * window_rows);
  // The same inside of the window.
  if (has_short && at >= (short_at_ - first + 1) * block_rows_ - missing_) at += missing_;
  return blocks_(first + at / block_rows_) * block_rows_ + at % block_rows_;
}

EpochOrder::EpochOrder(const OrderOptions& options)
    : options_(Checked(options)), shuffle_(options.rows, EpochKey(options.seed, options.epoch)) {
  if (options_.block_rows != 0) {
    blocks_.emplace(options_.rows, EpochKey(options_.seed, options_.epoch), options_.block_rows,
                    options_.window_blocks);
  }
  steps_ = DivideUp(options_.rows - options_.start, options_.batch_size);
}

std::uint64_t EpochOrder::Cursor(std::uint64_t step) const {
  return step >= steps_ ? options_.rows : options_.start + step * options_.batch_size;
}

RowRange EpochOrder::Positions(std::uint64_t step) const {
  if (step >= steps_) return {};
  const std::uint64_t first = Cursor(step);
  const RowRange share = ShareOf(Cursor(step + 1) - first, options_);
  return {.begin = first + share.begin, .end = first + share.end};
}

RowRange ShareOf(std::uint64_t rows, const OrderOptions& options) {
  const auto world = static_cast<std::uint64_t>(options.world_size);
  std::uint64_t shares = world;
  if (options.least_rows != 0)
    shares = std::clamp<std::uint64_t>(rows / options.least_rows, 1, world);
  const auto border = [&](int rank) {
    // Of the ranks before this one.
    const std::uint64_t before = DivideUp(static_cast<std::uint64_t>(rank) * shares, world);
    return rows / shares * before + std::min(before, rows % shares);
  };
  return {.begin = border(options.rank), .end = border(options.rank + options.ranks)};
}

}  // namespace orca::data
