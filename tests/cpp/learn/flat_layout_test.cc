#include "orca/learn/flat_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "orca/core/error.h"

namespace orca::learn {
namespace {

using ::testing::HasSubstr;

TEST(FlatLayoutTest, TensorsOfOneTypeAndGroupAreNeighboursAndBeginCacheLines) {
  const FlatLayout layout({{.name = "a", .count = 3, .group = 1},
                           {.name = "b", .dtype = DType::kFloat64, .count = 9},
                           {.name = "c", .count = 17},
                           {.name = "d", .count = 1, .group = 1}});
  EXPECT_EQ(layout.offset(1), 0U);           // float64 comes first
  EXPECT_EQ(layout.offset(2), 128U);         // 72 bytes take two lines
  EXPECT_EQ(layout.offset(0), 128U + 128U);  // 68 bytes take two lines
  EXPECT_EQ(layout.offset(3), 128U + 128U + 64U);
  EXPECT_EQ(layout.size(), 128U + 128U + 64U + 64U);
}

TEST(FlatLayoutTest, RunsEndWhereTypeGroupOrKindChangeAndLeaveOutWhatIsBelowZero) {
  const FlatLayout layout({{.name = "a", .count = 16},
                           {.name = "b", .count = 16},
                           {.name = "c", .count = 16},
                           {.name = "d", .count = 16},
                           {.name = "e", .count = 16, .group = 1}});
  const auto all = layout.Runs(std::vector<int>{0, 0, 0, 0, 0});
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].range, (FlatLayout::Range{0, 256}));
  EXPECT_EQ(all[1].range, (FlatLayout::Range{256, 320}));
  const auto some = layout.Runs(std::vector<int>{0, -1, 0, 2, 2});
  ASSERT_EQ(some.size(), 4U);
  EXPECT_EQ(some[1].range, (FlatLayout::Range{128, 192}));
  EXPECT_EQ(some[2].kind, 2);
}

TEST(FlatLayoutTest, SharesCoverARangeOnceAndDifferByOneLine) {
  for (std::size_t lines = 0; lines < 20; ++lines) {
    for (int world = 1; world <= 5; ++world) {
      const FlatLayout::Range range{640, 640 + lines * 64};
      std::size_t at = range.begin;
      for (int rank = 0; rank < world; ++rank) {
        const auto share = FlatLayout::Share(range, rank, world);
        EXPECT_EQ(share.begin, at);
        EXPECT_LE(share.size() / 64, lines / static_cast<std::size_t>(world) + 1);
        at = share.end;
      }
      EXPECT_EQ(at, range.end);
    }
  }
}

TEST(FlatLayoutTest, NamesThatRepeatAndImpossibleSizesAreRefused) {
  try {
    const FlatLayout layout({{.name = "w", .count = 1}, {.name = "w", .count = 1}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'w'"));
  }
  EXPECT_THROW(FlatLayout({{.name = "w", .count = ~std::uint64_t{0}}}), Error);
}

}  // namespace
}  // namespace orca::learn
