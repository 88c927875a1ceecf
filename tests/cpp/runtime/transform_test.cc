// XShards that workers transform. This program is its own nursery: see main.
#include "orca/runtime/transform.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>
#include <vector>

#include "orca/core/error.h"

namespace orca {
namespace {

using data::Arrays;
using data::Shard;
using data::ViewAs;
using data::XShards;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

Arrays Doubled(const Shard& shard) {
  const auto x = ViewAs<std::int64_t>(shard, "x");
  std::vector<std::int64_t> doubled(x.begin(), x.end());
  for (std::int64_t& value : doubled) value *= 2;
  return Arrays().Add("x", std::move(doubled));
}

Arrays Fails(const Shard& shard) {
  for (const std::int64_t value : ViewAs<std::int64_t>(shard, "x"))
    if (value == 5) throw std::runtime_error("5 is poison");
  return Doubled(shard);
}

std::unique_ptr<Context> Start() {
  ContextOptions options;
  options.cores = 2;
  options.agent = ORCA_TEST_AGENT;
  return Context::Start(options);
}

XShards Numbers(std::int64_t rows, int shards, const std::shared_ptr<data::ShardHome>& home) {
  std::vector<std::int64_t> x(static_cast<std::size_t>(rows));
  std::iota(x.begin(), x.end(), 0);
  return XShards::Partition(Arrays().Add("x", std::move(x)), shards, home);
}

// F39
TEST(TransformTest, F39EveryShardIsMadeAnewInItsPlace) {
  const auto context = Start();
  for (const std::int64_t rows : {0, 1, 3, 20}) {
    for (int shards = 1; shards <= 5; ++shards) {
      const XShards doubled =
          Transform(*context, Numbers(rows, shards, context->shards()), Doubled);
      ASSERT_EQ(doubled.shards().size(), static_cast<std::size_t>(shards));
      std::vector<std::int64_t> expected;
      for (std::int64_t row = 0; row < rows; ++row) expected.push_back(2 * row);
      EXPECT_THAT(ViewAs<std::int64_t>(*doubled.Collect(), "x"), ElementsAreArray(expected));
      // What workers made, workers read.
      const XShards again = Transform(*context, doubled, Doubled, {.workers = 3});
      for (std::int64_t& value : expected) value *= 2;
      EXPECT_THAT(ViewAs<std::int64_t>(*again.Collect(), "x"), ElementsAreArray(expected));
    }
  }
  EXPECT_TRUE(Transform(*context, XShards({}), Doubled).shards().empty());
}

// F36
TEST(TransformTest, F36AnErrorNamesTheShard) {
  const auto context = Start();
  try {
    Transform(*context, Numbers(20, 5, context->shards()), Fails);
    FAIL() << "nobody threw";
  } catch (const RunError& error) {
    EXPECT_THAT(error.what(), HasSubstr("shard 1: the function threw: 5 is poison"));
  }
  EXPECT_THROW(Transform(*context, Numbers(3, 1, nullptr), Doubled), Error);
}

}  // namespace
}  // namespace orca
