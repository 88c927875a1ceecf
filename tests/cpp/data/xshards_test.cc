// XShards against plain vectors.
#include "orca/data/xshards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "orca/core/error.h"

namespace orca::data {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr int kMostRows = 20;
constexpr int kMostShards = 5;

// Two columns of numbers, and texts of which every fourth is missing.
Arrays Table(int rows, int first = 0) {
  std::vector<std::int32_t> x(2 * static_cast<std::size_t>(rows));
  std::iota(x.begin(), x.end(), 2 * first);
  std::vector<double> y(static_cast<std::size_t>(rows));
  std::iota(y.begin(), y.end(), first);
  struct Texts {
    std::string values;
    std::vector<std::int64_t> offsets{0};
    std::vector<std::byte> validity;
  };
  const auto texts = std::make_shared<Texts>();
  texts->validity.resize((static_cast<std::size_t>(rows) + 7) / 8);
  for (int row = 0; row < rows; ++row) {
    texts->values += std::string(static_cast<std::size_t>(first + row) % 3, 'a');
    texts->offsets.push_back(static_cast<std::int64_t>(texts->values.size()));
    if ((first + row) % 4 != 0) texts->validity[row / 8] |= std::byte{1} << (row % 8);
  }
  Arrays arrays;
  arrays.Add("x", std::move(x), {2}).Add("y", std::move(y));
  arrays.Add({.name = "text", .kind = ColumnKind::kString}, static_cast<std::uint64_t>(rows),
             {.values = std::as_bytes(std::span(texts->values)),
              .offsets = texts->offsets,
              .validity = texts->validity},
             texts);
  return arrays;
}

// Whether a shard holds the rows of Table from `first` on.
void ExpectTable(const Shard& shard, int first) {
  const Arrays expected = Table(static_cast<int>(shard.rows()), first);
  ASSERT_EQ(shard.specs(), expected.specs());
  for (std::size_t c = 0; c < expected.columns().size(); ++c) {
    const Column& a = shard.columns()[c];
    const Column& b = expected.columns()[c];
    EXPECT_THAT(a.values, ElementsAreArray(b.values));
    EXPECT_THAT(a.offsets, ElementsAreArray(b.offsets));
    for (std::uint64_t row = 0; row < shard.rows(); ++row)
      EXPECT_EQ(a.IsMissing(row), b.IsMissing(row)) << row;
  }
}

// The rows come in order, the first shards have one more.
void ExpectDivided(const XShards& shards, int rows, int count) {
  ASSERT_EQ(shards.shards().size(), static_cast<std::size_t>(count));
  EXPECT_EQ(shards.rows(), static_cast<std::uint64_t>(rows));
  int first = 0;
  for (int i = 0; i < count; ++i) {
    const Shard& shard = *shards.shards()[static_cast<std::size_t>(i)];
    EXPECT_EQ(static_cast<int>(shard.rows()), rows / count + (i < rows % count ? 1 : 0));
    ExpectTable(shard, first);
    first += static_cast<int>(shard.rows());
  }
}

// F39: no rows, fewer rows than shards, and numbers that do not divide each other.
TEST(XShardsTest, F39PartitionRepartitionAndCollectKeepEveryRowInOrder) {
  for (int rows = 0; rows <= kMostRows; ++rows) {
    for (int count = 1; count <= kMostShards; ++count) {
      const XShards shards = XShards::Partition(Table(rows), count);
      ExpectDivided(shards, rows, count);
      ExpectDivided(shards.Repartition(1 + (rows + count) % kMostShards), rows,
                    1 + (rows + count) % kMostShards);
      const auto all = shards.Collect();
      EXPECT_EQ(all->rows(), static_cast<std::uint64_t>(rows));
      ExpectTable(*all, 0);
    }
  }
}

// F40
TEST(XShardsTest, F40VeryUnevenShardsAreRebalanced) {
  const auto home = ShardShelf::Create();
  XShards::List list;
  int first = 0;
  for (const int rows : {1, 1000, 0, 3}) {
    list.push_back(XShards::Partition(Table(rows, first), 1, home).shards()[0]);
    first += rows;
  }
  ExpectDivided(XShards(list, home).Repartition(5), 1004, 5);
}

TEST(XShardsTest, ZipJoinsWhatSplitHasDivided) {
  for (int rows = 0; rows <= kMostRows; ++rows) {
    for (int count = 1; count <= kMostShards; ++count) {
      const XShards shards = XShards::Partition(Table(rows), count);
      const auto parts = shards.Split({{"x"}, {"y", "text"}});
      ASSERT_EQ(parts.size(), 2U);
      EXPECT_EQ(parts[0].shards()[0]->specs().size(), 1U);
      ExpectDivided(parts[0].Zip(parts[1]), rows, count);
    }
  }
}

TEST(XShardsTest, TransformMakesEachShardAnewInItsPlaceOnAnyNumberOfThreads) {
  for (int rows = 0; rows <= kMostRows; ++rows) {
    for (int count = 1; count <= kMostShards; ++count) {
      std::atomic<int> calls = 0;
      const auto sums = XShards::Partition(Table(rows), count)
                            .Transform(
                                [&](const Shard& shard) {
                                  ++calls;
                                  std::vector<double> sum(shard.rows());
                                  const auto x = ViewAs<std::int32_t>(shard, "x");
                                  for (std::size_t i = 0; i < sum.size(); ++i)
                                    sum[i] = x[2 * i] + x[2 * i + 1];
                                  return Arrays().Add("sum", std::move(sum));
                                },
                                1 + (rows + count) % 4);
      EXPECT_EQ(calls, count);
      std::vector<double> expected;
      for (int row = 0; row < rows; ++row) expected.push_back(4 * row + 1);
      EXPECT_THAT(ViewAs<double>(*sums.Collect(), "sum"), ElementsAreArray(expected));
    }
  }
}

TEST(XShardsTest, BatchesHoldEveryRowOnce) {
  for (int rows = 1; rows <= kMostRows; ++rows) {
    const XShards shards = XShards::Partition(Table(rows), 1 + rows % kMostShards);
    std::vector<double> seen;
    for (int rank = 0; rank < 2; ++rank) {
      const auto loader =
          shards.Batches({.batch_size = 3, .seed = 5, .rank = rank, .world_size = 2});
      while (const auto batch = loader->Next()) {
        const auto* y = reinterpret_cast<const double*>(batch->columns[1].values.data());
        seen.insert(seen.end(), y, y + batch->rows);
      }
    }
    std::ranges::sort(seen);
    std::vector<double> expected(static_cast<std::size_t>(rows));
    std::iota(expected.begin(), expected.end(), 0.0);
    EXPECT_EQ(seen, expected);
  }
}

TEST(XShardsTest, ReadsIdxAndNpyFiles) {
  const std::vector<std::uint8_t> images(7 * 4, 3);
  const std::vector<std::int64_t> labels{1, 2, 3, 4, 5, 6, 7};
  const io::Tensor image{{"", io::TensorType::kUInt8, {7, 2, 2}}, std::as_bytes(std::span(images))};
  const io::Tensor label{{"", io::TensorType::kInt64, {7}}, std::as_bytes(std::span(labels))};
  io::WriteIdx("images.idx", image);
  io::WriteNpy("images.npy", image);
  io::WriteNpy("labels.npy", label);
  const auto idx = XShards::ReadIdx({{"image", "images.idx"}}, 3);
  EXPECT_EQ(idx.shards().size(), 3U);
  EXPECT_EQ(idx.rows(), 7U);
  EXPECT_THAT(ViewAs<std::uint8_t>(*idx.Collect(), "image"), ElementsAreArray(images));
  const auto npy = XShards::ReadNpy({{"image", "images.npy"}, {"label", "labels.npy"}}, 2);
  EXPECT_EQ(npy.shards()[0]->specs()[0].row_shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_THAT(ViewAs<std::int64_t>(*npy.Collect(), "label"), ElementsAreArray(labels));
  std::filesystem::resize_file("labels.npy", 100);
  EXPECT_THROW(XShards::ReadNpy({{"label", "labels.npy"}}, 2), Error);
  for (const char* name : {"images.idx", "images.npy", "labels.npy"}) std::filesystem::remove(name);
}

template <typename Function>
std::string Refusal(Function function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_NE(error.code(), Code::kInternal);
    return error.what();
  }
  return "it worked";
}

// F36: the shard is named, and what there is instead.
TEST(XShardsTest, F36NamesWhatItRefuses) {
  const XShards shards = XShards::Partition(Table(7), 3);
  EXPECT_THAT(Refusal([&] { XShards::Partition(Table(7), 0); }), HasSubstr("num_shards is 0"));
  EXPECT_THAT(Refusal([&] { shards.Repartition(-1); }), HasSubstr("num_shards is -1"));
  EXPECT_THAT(Refusal([&] { Table(3).Add("z", std::vector<float>(4)); }),
              HasSubstr("'z' has 4 rows, 'x' has 3"));
  EXPECT_THAT(Refusal([&] { Table(3).Add("x", std::vector<float>(3)); }), HasSubstr("name 'x'"));
  EXPECT_THAT(Refusal([&] { Arrays().Add("z", std::vector<float>(4), {3}); }),
              HasSubstr("no whole number of rows"));
  EXPECT_THAT(Refusal([&] { Arrays().Add("z", std::vector<std::uint64_t>(4)); }),
              HasSubstr("'z' is uint64"));
  EXPECT_THAT(Refusal([&] { shards.Zip(shards); }), HasSubstr("name 'x'"));
  EXPECT_THAT(Refusal([&] { shards.Zip(shards.Repartition(2)); }), HasSubstr("3 shards"));
  EXPECT_THAT(Refusal([&] {
                shards.Split({{"y"}})[0].Zip(XShards::Partition(Table(8), 3).Split({{"x"}})[0]);
              }),
              HasSubstr("shard 1 has 2 rows here and 3 there"));
  EXPECT_THAT(Refusal([&] { shards.Split({{"z"}}); }), HasSubstr("there is 'x', 'y', 'text'"));
  EXPECT_THAT(Refusal([&] { ViewAs<float>(*shards.shards()[0], "x"); }),
              HasSubstr("'x' is int32, not float32"));
  EXPECT_THAT(Refusal([&] { XShards({}).Collect(); }), HasSubstr("no shard"));
  const auto fails = [](const Shard& shard) -> Arrays {
    if (ViewAs<double>(shard, "y")[0] < 3) return Table(1);
    throw std::runtime_error("a row is poison");
  };
  for (const int threads : {1, 2, 8}) {
    EXPECT_THAT(Refusal([&] { shards.Transform(fails, threads); }),
                HasSubstr("shard 1: the function threw: a row is poison"));
  }
}

TEST(XShardsTest, WorksBeyondItsMemory) {
  const auto home = ShardShelf::Create({.limit = 100'000, .spill = "."});
  const XShards shards = XShards::Partition(Table(20'000), 5, home);
  EXPECT_GT(home->usage().files, 400'000U);
  EXPECT_LE(home->usage().held, 100'000U);
  ExpectDivided(shards.Repartition(3), 20'000, 3);
}

}  // namespace
}  // namespace orca::data
