// Batches against the rows they should hold.
#include "orca/data/array_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "data/convert_variants.h"
#include "orca/core/error.h"

namespace orca::data {
namespace {

template <typename T>
std::span<const std::byte> Bytes(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <typename T>
std::vector<T> Values(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Column 0: three uint8 made from the row's number; column 1: the number, as int64.
std::unique_ptr<ArrayStore> MakeStore(std::uint64_t rows, std::uint64_t shards) {
  auto store = ArrayStore::Create({{"image", DType::kUInt8, {3}}, {"label", DType::kInt64, {}}});
  std::uint64_t row = 0;
  for (std::uint64_t shard = 0; shard < shards; ++shard) {
    const std::uint64_t end = rows * (shard + 1) / shards;
    std::vector<std::uint8_t> images;
    std::vector<std::int64_t> labels;
    for (; row < end; ++row) {
      for (std::uint64_t i = 0; i < 3; ++i)
        images.push_back(static_cast<std::uint8_t>(row * 7 + i));
      labels.push_back(static_cast<std::int64_t>(row));
    }
    const Column columns[] = {{Bytes(images)}, {Bytes(labels)}};
    store->Put(labels.size(), columns);
  }
  return store;
}

// Appends the row numbers of a batch, whose images must belong to them.
void AppendLabels(const Batch& batch, std::vector<std::int64_t>& labels) {
  const auto images = Values<std::uint8_t>(batch.columns[0].values);
  const auto more = Values<std::int64_t>(batch.columns[1].values);
  ASSERT_EQ(more.size(), batch.rows);
  ASSERT_EQ(images.size(), 3 * batch.rows);
  for (std::size_t i = 0; i < more.size(); ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      ASSERT_EQ(images[i * 3 + j],
                static_cast<std::uint8_t>(static_cast<std::uint64_t>(more[i]) * 7 + j));
    }
  }
  labels.insert(labels.end(), more.begin(), more.end());
}

std::vector<std::int64_t> LabelsOf(BatchLoader& loader) {
  std::vector<std::int64_t> labels;
  while (const auto batch = loader.Next()) AppendLabels(*batch, labels);
  return labels;
}

// Takes at most `steps` batches of every rank and appends their rows; returns where to go on.
std::uint64_t TakeSteps(const ArrayStore& store, BatchOptions options, std::uint64_t steps,
                        std::vector<std::int64_t>& labels) {
  std::uint64_t cursor = options.start;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    const auto loader = store.Batches(options);
    for (std::uint64_t step = 0; step < steps && step < loader->steps(); ++step) {
      const auto batch = loader->Next();
      if (batch == nullptr) {
        ADD_FAILURE() << "no batch " << step << " of " << loader->steps();
        return cursor;
      }
      AppendLabels(*batch, labels);
      cursor = batch->cursor;
    }
    if (steps >= loader->steps()) {
      EXPECT_EQ(loader->Next(), nullptr);
    }
  }
  return cursor;
}

void ExpectEveryRowOnce(std::vector<std::int64_t> labels, std::uint64_t rows) {
  std::sort(labels.begin(), labels.end());
  std::vector<std::int64_t> expected(rows);
  std::iota(expected.begin(), expected.end(), 0);
  ASSERT_EQ(labels, expected);
}

constexpr std::uint64_t kAllSteps = ~0ULL;

// rows, shards, ranks, batch size: all small ones.
template <typename Check>
void ForAllCombinations(const Check& check) {
  for (std::uint64_t rows = 0; rows <= 20; ++rows) {
    for (std::uint64_t shards = 1; shards <= 5; ++shards) {
      const auto store = MakeStore(rows, shards);
      for (int world = 1; world <= 4; ++world) {
        for (std::uint64_t batch = 1; batch <= 7; ++batch) {
          SCOPED_TRACE(::testing::Message() << rows << " rows, " << shards << " shards, " << world
                                            << " ranks, batch " << batch);
          check(*store,
                BatchOptions{.batch_size = batch, .seed = rows, .world_size = world, .ahead = 0});
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(ArrayStoreTest, GivesEveryRowOnce) {
  ForAllCombinations([](const ArrayStore& store, BatchOptions options) {
    for (const std::uint64_t block_rows : {0, 3}) {
      options.block_rows = block_rows;
      options.window_blocks = 2;
      std::vector<std::int64_t> labels;
      ASSERT_EQ(TakeSteps(store, options, kAllSteps, labels), store.rows());
      ExpectEveryRowOnce(std::move(labels), store.rows());
    }
  });
}

TEST(ArrayStoreTest, GivesEveryRowOnceThroughARestartWithAnyNumberOfRanks) {
  ForAllCombinations([](const ArrayStore& store, const BatchOptions& options) {
    const std::uint64_t steps = store.Batches(options)->steps();
    for (int world = 1; world <= 4; ++world) {
      std::vector<std::int64_t> labels;
      BatchOptions rest = options;
      rest.start = TakeSteps(store, options, steps / 2, labels);
      ASSERT_EQ(rest.start, labels.size());
      rest.world_size = world;
      rest.batch_size = options.batch_size % 7 + 1;
      ASSERT_EQ(TakeSteps(store, rest, kAllSteps, labels), store.rows());
      ExpectEveryRowOnce(std::move(labels), store.rows());
    }
  });
}

TEST(ArrayStoreTest, AStepHoldsTheSameRowsForAnyNumberOfRanks) {
  const auto store = MakeStore(100, 3);
  const auto one = store->Batches({.batch_size = 10, .seed = 4});
  std::vector<std::unique_ptr<BatchLoader>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(store->Batches({.batch_size = 10, .seed = 4, .rank = rank, .world_size = 3}));
  }
  while (const auto batch = one->Next()) {
    std::vector<std::int64_t> expected;
    std::vector<std::int64_t> together;
    AppendLabels(*batch, expected);
    std::vector<std::uint64_t> shares;
    for (const auto& rank : ranks) {
      const auto part = rank->Next();
      ASSERT_NE(part, nullptr);
      EXPECT_EQ(part->cursor, batch->cursor);
      shares.push_back(part->rows);
      AppendLabels(*part, together);
    }
    EXPECT_EQ(together, expected);
    EXPECT_THAT(shares, ::testing::ElementsAre(4, 3, 3));
  }
}

TEST(ArrayStoreTest, GathersAheadTheSameBatches) {
  const auto store = MakeStore(1000, 3);
  const auto plain = store->Batches({.batch_size = 7, .seed = 1, .ahead = 0});
  const auto expected = LabelsOf(*plain);
  ASSERT_EQ(expected.size(), 1000U);
  for (const int threads : {1, 2, 5}) {
    for (const int ahead : {1, 2, 5}) {
      const auto loader =
          store->Batches({.batch_size = 7, .seed = 1, .ahead = ahead, .threads = threads});
      EXPECT_EQ(LabelsOf(*loader), expected) << ahead << " ahead, " << threads << " threads";
    }
  }
}

TEST(ArrayStoreTest, ALoaderThatGathersAheadMayGoAtAnyTime) {
  const auto store = MakeStore(1000, 2);
  for (int taken = 0; taken < 6; ++taken) {
    const auto loader = store->Batches({.batch_size = 10, .ahead = 3, .threads = 2});
    for (int i = 0; i < taken; ++i) ASSERT_NE(loader->Next(), nullptr);
  }
}

TEST(ArrayStoreTest, ABatchStaysAsItIsWhileSomebodyHoldsIt) {
  const auto store = MakeStore(100, 1);
  std::shared_ptr<const Batch> held;
  std::vector<std::int64_t> labels;
  {
    const auto loader = store->Batches({.batch_size = 10, .seed = 9});
    held = loader->Next();
    labels = Values<std::int64_t>(held->columns[1].values);
    while (loader->Next()) {
    }
  }
  EXPECT_EQ(Values<std::int64_t>(held->columns[1].values), labels);
}

TEST(ArrayStoreTest, UsesTheMemoryOfBatchesAgain) {
  const auto store = MakeStore(100, 1);
  const auto loader = store->Batches({.batch_size = 10, .ahead = 0});
  const std::byte* const first = loader->Next()->columns[0].values.data();
  EXPECT_EQ(loader->Next()->columns[0].values.data(), first);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0U);
}

TEST(ArrayStoreTest, GathersAheadInAFewBuffers) {
  const auto store = MakeStore(10000, 2);
  const auto loader = store->Batches({.batch_size = 10, .ahead = 3, .threads = 2});
  std::set<const std::byte*> seen;
  while (const auto batch = loader->Next()) seen.insert(batch->columns[0].values.data());
  // What waits, what the threads and the one who asks work on, and the one in our hands.
  EXPECT_LE(seen.size(), 3U + 2U + 2U);
}

// Readers while a writer adds shards: what a loader sees is one of the moments between two puts.
TEST(ArrayStoreTest, MayBeFilledWhileOthersRead) {
  const auto store = MakeStore(10, 1);
  std::jthread writer([&store] {
    for (std::int64_t row = 10; row < 200; ++row) {
      const std::vector<std::uint8_t> images{static_cast<std::uint8_t>(row * 7),
                                             static_cast<std::uint8_t>(row * 7 + 1),
                                             static_cast<std::uint8_t>(row * 7 + 2)};
      const std::vector<std::int64_t> labels{row};
      const Column columns[] = {{Bytes(images)}, {Bytes(labels)}};
      store->Put(1, columns);
    }
  });
  std::uint64_t rows = 0;
  while (rows < 200) {
    const auto loader = store->Batches({.batch_size = 16, .threads = 2});
    auto labels = LabelsOf(*loader);
    ASSERT_GE(labels.size(), rows);
    rows = labels.size();
    ASSERT_NO_FATAL_FAILURE(ExpectEveryRowOnce(std::move(labels), rows));
  }
}

// F27: the threads stay with the parent; a child must neither wait for them nor for their locks.
TEST(ArrayStoreTest, F27AForkedChildIsToldToAskAgain) {
  const auto store = MakeStore(1000, 2);
  auto loader = store->Batches({.batch_size = 10, .ahead = 3, .threads = 2});
  auto held = loader->Next();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);
    int result = 1;
    try {
      (void)loader->Next();
    } catch (const Error& error) {
      result = error.code() == Code::kFailedPrecondition ? 0 : 2;
    }
    const std::uint64_t cursor = held->cursor;
    held.reset();
    loader.reset();
    std::uint64_t rows = 0;
    const auto rest = store->Batches({.batch_size = 10, .start = cursor, .ahead = 0});
    while (const auto batch = rest->Next()) rows += batch->rows;
    ::_exit(rows == 990 ? result : 3);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(LabelsOf(*loader).size(), 990U);
}

// No thread is started for it, so there is none that a child could miss.
TEST(ArrayStoreTest, TheOnlyBatchOfAnEpochIsGatheredWhenItIsAskedFor) {
  const auto store = MakeStore(10, 2);
  const auto loader = store->Batches({.batch_size = 10, .ahead = 3, .threads = 2});
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);
    ::_exit(LabelsOf(*loader).size() == 10 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(LabelsOf(*loader).size(), 10U);
}

TEST(ArrayStoreTest, ConvertsToFloat32) {
  const auto store = MakeStore(50, 2);
  const auto loader = store->Batches(
      {.batch_size = 50,
       .shuffle = false,
       .conversions = {ToFloat32{.scale = 1 / 255.0F, .shift = -0.5F}, std::nullopt}});
  const auto values = Values<float>(loader->Next()->columns[0].values);
  ASSERT_EQ(values.size(), 150U);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(i / 3 * 7 + i % 3);
    volatile float product = static_cast<float>(byte) * (1 / 255.0F);  // not fused
    EXPECT_EQ(values[i], product + -0.5F);
  }
}

TEST(ArrayStoreTest, ConvertsDoublesFromAnyShard) {
  const auto store = ArrayStore::Create({{"x", DType::kFloat64, {5}}});
  std::vector<double> all;
  for (int shard = 0; shard < 3; ++shard) {
    std::vector<double> values;
    for (int i = 0; i < 35; ++i) values.push_back(shard * 1000 + i / 3.0);
    const Column columns[] = {{Bytes(values)}};
    store->Put(7, columns);
    all.insert(all.end(), values.begin(), values.end());
  }
  const auto loader =
      store->Batches({.batch_size = 21, .shuffle = false, .conversions = {ToFloat32{}}});
  const auto values = Values<float>(loader->Next()->columns[0].values);
  ASSERT_EQ(values.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(values[i], static_cast<float>(all[i]));
}

// Every size of a row that has a way of its own, and some that have none.
TEST(ArrayStoreTest, GathersRowsOfAnySize) {
  for (const std::int64_t bytes : {0, 1, 2, 3, 4, 7, 8, 9, 63, 64, 65, 784, 5000}) {
    const auto store =
        ArrayStore::Create({{"x", DType::kUInt8, {bytes}}, {"y", DType::kInt64, {}}});
    std::vector<std::uint8_t> values;
    std::vector<std::int64_t> labels;
    for (std::int64_t row = 0; row < 50; ++row) {
      for (std::int64_t i = 0; i < bytes; ++i) {
        values.push_back(static_cast<std::uint8_t>(row * 31 + i));
      }
      labels.push_back(row);
    }
    const Column columns[] = {{Bytes(values)}, {Bytes(labels)}};
    store->Put(50, columns);
    const auto loader = store->Batches({.batch_size = 50, .ahead = 0});
    const auto batch = loader->Next();
    const auto rows = Values<std::int64_t>(batch->columns[1].values);
    ASSERT_EQ(batch->columns[0].values.size(), static_cast<std::size_t>(50 * bytes));
    for (std::size_t i = 0; i < static_cast<std::size_t>(50 * bytes); ++i) {
      const auto size = static_cast<std::size_t>(bytes);
      const auto expected =
          static_cast<std::uint8_t>(static_cast<std::size_t>(rows[i / size]) * 31 + i % size);
      ASSERT_EQ(std::to_integer<std::uint8_t>(batch->columns[0].values[i]), expected) << bytes;
    }
  }
}

TEST(ArrayStoreTest, LoadersKeepWhatWasThereWhenTheyWereMade) {
  const auto store = MakeStore(10, 1);
  const auto loader = store->Batches({.batch_size = 3});
  const std::vector<std::uint8_t> images(3);
  const std::vector<std::int64_t> labels{999};
  const Column columns[] = {{Bytes(images)}, {Bytes(labels)}};
  store->Put(1, columns);
  EXPECT_EQ(store->rows(), 11U);
  EXPECT_THAT(LabelsOf(*loader), ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(ArrayStoreTest, ShowsItsShards) {
  std::shared_ptr<const Shard> second;
  {
    const auto store = MakeStore(10, 2);
    ASSERT_EQ(store->shards().size(), 2U);
    second = store->shards()[1];
  }
  EXPECT_EQ(second->rows(), 5U);
  EXPECT_THAT(Values<std::int64_t>(second->columns()[1].values),
              ::testing::ElementsAre(5, 6, 7, 8, 9));
}

TEST(ArrayStoreTest, RefusesWhatCannotWork) {
  EXPECT_THROW(ArrayStore::Create({}), Error);
  EXPECT_THROW(ArrayStore::Create({{"a", DType::kInt8, {-1}}}), Error);
  EXPECT_THROW(ArrayStore::Create({{"a", DType::kInt8, {1LL << 40, 1LL << 40}}}), Error);
  EXPECT_THROW(ArrayStore::Create({{"a", DType::kInt8, {0, 1LL << 40, 1LL << 40}}}), Error);
  const auto store = MakeStore(10, 1);
  const std::vector<std::uint8_t> images(3);
  const std::vector<std::int64_t> labels(2);
  const Column unequal[] = {{Bytes(images)}, {Bytes(labels)}};
  EXPECT_THROW(store->Put(1, unequal), Error);
  EXPECT_THROW(store->Put(2, unequal), Error);
  EXPECT_THROW(store->Put(1, std::span(unequal, 1)), Error);
  EXPECT_EQ(store->rows(), 10U);
  EXPECT_THROW(store->Batches({.batch_size = 0}), Error);
  EXPECT_THROW(store->Batches({.ahead = -1}), Error);
  EXPECT_THROW(store->Batches({.ahead = 5000}), Error);
  EXPECT_THROW(store->Batches({.threads = 0}), Error);
  EXPECT_THROW(store->Batches({.threads = 257}), Error);
  EXPECT_THROW(store->Batches({.start = 11}), Error);
  EXPECT_THROW(store->Batches({.block_rows = 2, .window_blocks = 0}), Error);
  EXPECT_THROW(store->Batches({.conversions = {std::nullopt}}), Error);
  EXPECT_THROW(store->Batches({.conversions = {std::nullopt, ToFloat32{}}}), Error);
}

#if defined(__x86_64__)
TEST(ConvertersTest, GiveTheSameBits) {
  std::vector<std::uint8_t> bytes(1000);
  std::vector<double> doubles(1000);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(i * 37);
    doubles[i] = static_cast<double>(i) * 1.000000119 - 300;
  }
  const auto run = [&](const Converters& converters) {
    std::vector<float> results(2000);
    converters.from_uint8(Bytes(bytes).data(), results.data(), 1000, 0.0039215687F, -0.1307F);
    converters.from_float64(Bytes(doubles).data(), results.data() + 1000, 1000, 1.1F, 0.3F);
    return results;
  };
  const auto expected = run(kConvertersBaseline);
  if (__builtin_cpu_supports("avx2")) {
    EXPECT_EQ(run(kConvertersAvx2), expected);
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    EXPECT_EQ(run(kConvertersAvx512), expected);
  }
}
#endif

}  // namespace
}  // namespace orca::data
