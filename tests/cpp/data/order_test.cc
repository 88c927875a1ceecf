// The order of rows: every row once, the same everywhere, any step at once.
#include "orca/data/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "orca/core/error.h"

namespace orca::data {
namespace {

std::vector<std::uint64_t> All(const Permutation& shuffle) {
  std::vector<std::uint64_t> rows(shuffle.size());
  for (std::uint64_t i = 0; i < rows.size(); ++i) rows[i] = shuffle(i);
  return rows;
}

TEST(PermutationTest, VisitsEveryRowOnce) {
  for (std::uint64_t size : {0, 1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4096, 4097, 60000}) {
    for (const std::uint64_t key : {0ULL, 1ULL, ~0ULL}) {
      auto rows = All(Permutation(size, key));
      std::sort(rows.begin(), rows.end());
      std::vector<std::uint64_t> expected(size);
      std::iota(expected.begin(), expected.end(), std::uint64_t{0});
      ASSERT_EQ(rows, expected) << size << " rows, key " << key;
    }
  }
}

TEST(PermutationTest, StaysInsideOfHugeSizes) {
  const std::uint64_t size = (std::uint64_t{1} << 62) + 12345;
  const Permutation shuffle(size, 7);
  for (std::uint64_t i = 0; i < 1000; ++i) ASSERT_LT(shuffle(size - 1 - i * 1000003), size);
}

TEST(PermutationTest, FindsThePositionOfARow) {
  for (const std::uint64_t size : {1ULL, 2ULL, 5ULL, 1000ULL, 4097ULL}) {
    const Permutation shuffle(size, 11);
    for (std::uint64_t i = 0; i < size; ++i) ASSERT_EQ(shuffle.PositionOf(shuffle(i)), i);
  }
  const std::uint64_t size = (std::uint64_t{1} << 63) + 99;
  const Permutation shuffle(size, 12);
  for (std::uint64_t i = 0; i < 1000; ++i) ASSERT_EQ(shuffle.PositionOf(shuffle(i * i)), i * i);
}

// Where a row lands must not depend on where it was: over many keys, every (position, row) is
// equally frequent. The limit is five standard deviations of the chi-squared distribution.
TEST(PermutationTest, LooksRandom) {
  constexpr int kKeys = 20000;
  for (const std::uint64_t size : {2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 16, 17, 20, 100, 256, 257}) {
    std::vector<int> counts(size * size);
    for (int key = 0; key < kKeys; ++key) {
      const Permutation shuffle(size, static_cast<std::uint64_t>(key));
      for (std::uint64_t i = 0; i < size; ++i) ++counts[i * size + shuffle(i)];
    }
    const double expected = static_cast<double>(kKeys) / static_cast<double>(size);
    double chi_squared = 0;
    for (const int count : counts) {
      chi_squared += (count - expected) * (count - expected) / expected;
    }
    const auto freedom = static_cast<double>((size - 1) * (size - 1));
    EXPECT_LT(chi_squared, freedom + 5 * std::sqrt(2 * freedom)) << size << " rows";
  }
}

// Neighbours must not stay neighbours.
TEST(PermutationTest, SeparatesNeighbours) {
  constexpr std::uint64_t kSize = 60000;
  int neighbours = 0;
  const Permutation shuffle(kSize, 42);
  for (std::uint64_t i = 0; i + 1 < kSize; ++i) {
    const auto a = static_cast<std::int64_t>(shuffle(i));
    const auto b = static_cast<std::int64_t>(shuffle(i + 1));
    neighbours += std::abs(a - b) == 1;
  }
  EXPECT_LT(neighbours, 15);  // 2 are expected
}

// A change here changes what users' seeds mean.
TEST(PermutationTest, KeepsItsShuffles) {
  const auto first = [](const auto& row) {
    return std::vector<std::uint64_t>{row(0), row(1), row(2), row(3)};
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(first(Permutation(10, 0)), ElementsAre(4, 3, 6, 1));
  EXPECT_THAT(first(Permutation(1000, 1)), ElementsAre(497, 201, 772, 952));
  EXPECT_THAT(first(Permutation(60000, 1)), ElementsAre(10471, 37978, 13270, 13494));
  EXPECT_THAT(first(Permutation(60000, 2)), ElementsAre(36571, 29350, 52296, 10525));
  EXPECT_THAT(first(Permutation(1ULL << 40, 3)),
              ElementsAre(177603414379, 85756926856, 824597216483, 152966086317));
  EXPECT_THAT(first(BlockPermutation(1003, 7, 10, 4)), ElementsAre(650, 374, 654, 659));
  const EpochOrder order({.rows = 60000, .batch_size = 64, .seed = 1, .epoch = 2});
  EXPECT_THAT(first([&order](std::uint64_t i) { return order.Row(i); }),
              ElementsAre(14991, 15011, 35554, 49656));
}

TEST(BlockPermutationTest, VisitsEveryRowOnce) {
  for (std::uint64_t size = 0; size <= 40; ++size) {
    for (std::uint64_t block_rows = 1; block_rows <= 9; ++block_rows) {
      for (std::uint64_t window = 1; window <= 6; ++window) {
        for (const std::uint64_t key : {1, 2, 3}) {
          const BlockPermutation shuffle(size, key, block_rows, window);
          std::vector<int> seen(size);
          for (std::uint64_t i = 0; i < size; ++i) {
            const std::uint64_t row = shuffle(i);
            ASSERT_LT(row, size);
            ++seen[row];
          }
          ASSERT_THAT(seen, ::testing::Each(1)) << size << " rows, blocks of " << block_rows
                                                << ", windows of " << window << ", key " << key;
        }
      }
    }
  }
}

// A reader that holds one window reads every block once: a block's rows are all within the rows of
// its window, wherever the short block is.
TEST(BlockPermutationTest, KeepsTheRowsOfABlockInOneWindow) {
  constexpr std::uint64_t kBlock = 10;
  constexpr std::uint64_t kWindow = 4;
  for (std::uint64_t key = 0; key < 20; ++key) {
    const BlockPermutation shuffle(1003, key, kBlock, kWindow);
    std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>>
        span;  // first and last of each
    for (std::uint64_t i = 0; i < 1003; ++i) {
      auto& [first, last] = span.try_emplace(shuffle(i) / kBlock, i, i).first->second;
      last = i;
    }
    ASSERT_EQ(span.size(), 101U);
    for (const auto& [block, range] : span) {
      EXPECT_LT(range.second - range.first, kBlock * kWindow) << "block " << block;
    }
  }
}

TEST(BlockPermutationTest, MixesBlocksAndRows) {
  const BlockPermutation shuffle(10000, 3, 100, 4);
  std::set<std::uint64_t> blocks;
  int in_order = 0;
  for (std::uint64_t i = 0; i < 400; ++i) {
    blocks.insert(shuffle(i) / 100);
    in_order += shuffle(i + 1) == shuffle(i) + 1;
  }
  EXPECT_EQ(blocks.size(), 4U);
  EXPECT_GT(*blocks.rbegin() - *blocks.begin(), 4U);  // not neighbours in the file
  EXPECT_LT(in_order, 15);                            // 1 is expected
}

TEST(BlockPermutationTest, TakesAnySizesWithoutAnOverflow) {
  const BlockPermutation shuffle(kMaxRows, 5, ~0ULL, ~0ULL);
  const BlockPermutation small(kMaxRows - 1, 5, 4096, ~0ULL);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    ASSERT_LT(shuffle(kMaxRows - 1 - i), kMaxRows);
    ASSERT_LT(small(kMaxRows - 2 - i * 1000003), kMaxRows - 1);
  }
}

TEST(EpochOrderTest, GivesEveryRowToOneBatchOfOneRank) {
  for (std::uint64_t rows = 0; rows <= 20; ++rows) {
    for (int world = 1; world <= 4; ++world) {
      for (std::uint64_t batch = 1; batch <= 7; ++batch) {
        for (const bool shuffle : {false, true}) {
          std::vector<int> seen(rows);
          std::vector<std::uint64_t> steps;
          for (int rank = 0; rank < world; ++rank) {
            const EpochOrder order({.rows = rows,
                                    .batch_size = batch,
                                    .shuffle = shuffle,
                                    .seed = 3,
                                    .epoch = 1,
                                    .rank = rank,
                                    .world_size = world});
            steps.push_back(order.steps());
            for (std::uint64_t step = 0; step < order.steps(); ++step) {
              const auto [begin, end] = order.Positions(step);
              ASSERT_LE(end - begin, batch / static_cast<std::uint64_t>(world) + 1);
              for (auto position = begin; position < end; ++position) ++seen[order.Row(position)];
            }
            const auto [begin, end] = order.Positions(order.steps());
            ASSERT_EQ(begin, end);
          }
          ASSERT_THAT(seen, ::testing::Each(1))
              << rows << " rows, " << world << " ranks, batch " << batch;
          ASSERT_THAT(steps, ::testing::Each(steps[0]));
        }
      }
    }
  }
}

TEST(EpochOrderTest, ACursorIsTheNumberOfRowsBehindIt) {
  const EpochOrder order({.rows = 10, .batch_size = 3, .start = 2});
  ASSERT_EQ(order.steps(), 3U);
  EXPECT_EQ(order.Cursor(0), 2U);
  EXPECT_EQ(order.Cursor(1), 5U);
  EXPECT_EQ(order.Cursor(2), 8U);
  EXPECT_EQ(order.Cursor(3), 10U);
  EXPECT_EQ(order.Cursor(~0ULL), 10U);
  EXPECT_EQ(EpochOrder({.rows = 10, .start = 10}).steps(), 0U);
  EXPECT_EQ(EpochOrder({.rows = 10, .batch_size = ~0ULL}).steps(), 1U);
}

// A row far away takes no longer than the first: nothing is walked through.
TEST(EpochOrderTest, BeginsAnywhereInAHugeEpoch) {
  const EpochOrder order({.rows = kMaxRows, .batch_size = 2, .start = kMaxRows - 3});
  ASSERT_EQ(order.steps(), 2U);
  EXPECT_EQ(order.Positions(1).begin, kMaxRows - 1);
  EXPECT_EQ(order.Positions(1).end, kMaxRows);
  EXPECT_LT(order.Row(kMaxRows - 1), kMaxRows);
}

TEST(EpochOrderTest, DiffersByEpochAndSeedAndIsTheSameOtherwise) {
  const auto rows = [](std::uint64_t seed, std::uint64_t epoch) {
    const EpochOrder order(
        {.rows = 1000, .batch_size = 10, .shuffle = true, .seed = seed, .epoch = epoch});
    std::vector<std::uint64_t> result;
    for (std::uint64_t i = 0; i < 1000; ++i) result.push_back(order.Row(i));
    return result;
  };
  EXPECT_EQ(rows(1, 2), rows(1, 2));
  EXPECT_NE(rows(1, 2), rows(1, 3));
  EXPECT_NE(rows(1, 2), rows(2, 2));
  EXPECT_NE(rows(1, 2), rows(2, 1));
}

TEST(EpochOrderTest, RanksMayHaveNeighboursSharesAndALeastNumberOfRows) {
  for (const std::uint64_t rows : {0, 1, 2, 3, 5, 12, 13, 23, 24, 25, 100}) {
    for (const std::uint64_t least : {0, 1, 2, 5}) {
      constexpr int kWorld = 12;
      std::uint64_t done = 0;
      std::uint64_t most = 0;
      int last = -1;  // that has rows
      for (int rank = 0; rank < kWorld; ++rank) {
        OrderOptions options{.rank = rank, .world_size = kWorld, .least_rows = least};
        const RowRange share = ShareOf(rows, options);
        EXPECT_EQ(share.begin, done);
        done = share.end;
        const std::uint64_t size = share.end - share.begin;
        most = std::max(most, size);
        if (size != 0) {
          EXPECT_GE(size, std::min(rows, least));
          EXPECT_GE(size + 1, most);
          // Those that have none are spread.
          if (least == 2 && rows == 12 && last >= 0) {
            EXPECT_EQ(rank - last, 2);
          }
          last = rank;
        }
        for (int ranks = 1; ranks <= kWorld - rank; ++ranks) {
          options.ranks = ranks;
          const RowRange joined = ShareOf(rows, options);
          OrderOptions end = options;
          end.rank = rank + ranks - 1;
          end.ranks = 1;
          EXPECT_EQ(joined.begin, share.begin);
          EXPECT_EQ(joined.end, ShareOf(rows, end).end);
        }
      }
      EXPECT_EQ(done, rows);
    }
  }
}

TEST(EpochOrderTest, RefusesWhatCannotWork) {
  EXPECT_THROW(EpochOrder({.rows = 1, .batch_size = 0}), Error);
  EXPECT_THROW(EpochOrder({.rows = 1, .rank = 1, .world_size = 1}), Error);
  EXPECT_THROW(EpochOrder({.rows = 1, .rank = -1, .world_size = 1}), Error);
  EXPECT_THROW(EpochOrder({.rows = 1, .rank = 0, .world_size = 0}), Error);
  EXPECT_THROW(EpochOrder({.rows = 1, .rank = 1, .world_size = 3, .ranks = 3}), Error);
  EXPECT_THROW(EpochOrder({.rows = 1, .ranks = 0}), Error);
  EXPECT_THROW(EpochOrder({.rows = 1, .start = 2}), Error);
  EXPECT_THROW(EpochOrder({.rows = 1, .block_rows = 1, .window_blocks = 0}), Error);
  EXPECT_THROW(EpochOrder({.rows = kMaxRows + 1}), Error);
}

}  // namespace
}  // namespace orca::data
