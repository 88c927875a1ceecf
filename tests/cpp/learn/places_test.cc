#include "orca/learn/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "orca/core/error.h"

namespace orca::learn {
namespace {

class PlacesTest : public ::testing::Test {
 protected:
  alignas(64) std::vector<std::byte> block_ = std::vector<std::byte>(Places::BlockSize(3));
  Places places_{block_, 3};
};

TEST_F(PlacesTest, FindsTheWorkerThatIsNoMore) {
  places_.Enter(0, 4);
  places_.Enter(1, 5);
  places_.Enter(2, 4);
  const auto death = places_.Find({false, true, false});
  ASSERT_TRUE(death);
  EXPECT_EQ(death->rank, 1);
  EXPECT_EQ(death->place, 5U);
  EXPECT_EQ(death->times, 1);
}

TEST_F(PlacesTest, TheThirdDeathInTheSamePlaceIsNoChance) {
  for (const int times : {1, 2, 3, 4}) {
    places_.Enter(1, 5);
    const auto death = places_.Find({false, true, false});
    ASSERT_TRUE(death);
    EXPECT_EQ(death->times, times);
    EXPECT_EQ(death->IsCertain(), times >= 3);
    places_.Settle(death);
  }
}

TEST_F(PlacesTest, AnotherRankOrPlaceIsAnotherDeath) {
  places_.Enter(1, 5);
  places_.Settle(places_.Find({false, true, false}));
  places_.Enter(2, 5);
  EXPECT_EQ(places_.Find({false, false, true})->times, 1);
  places_.Enter(2, 0);
  places_.Enter(1, 6);
  EXPECT_EQ(places_.Find({false, true, false})->times, 1);
}

TEST_F(PlacesTest, SeveralDeathsHaveNoPlace) {
  places_.Enter(1, 5);
  places_.Settle(places_.Find({false, true, false}));
  places_.Enter(0, 5);
  places_.Enter(1, 5);
  const auto death = places_.Find({true, true, false});
  EXPECT_FALSE(death);
  places_.Settle(death);
  places_.Enter(1, 5);
  EXPECT_EQ(places_.Find({false, true, false})->times, 1);
}

TEST_F(PlacesTest, WhoHadNotBegunIsNobodysFault) {
  places_.Settle(std::nullopt);
  EXPECT_FALSE(places_.Find({true, true, true}));
}

TEST(PlacesBlockTest, IsLargeEnough) {
  std::vector<std::byte> block(Places::BlockSize(3) - 1);
  EXPECT_THROW(Places(block, 3), Error);
}

}  // namespace
}  // namespace orca::learn
