#include "orca/core/deadline.h"

#include <gtest/gtest.h>

#include <limits>
#include <type_traits>

namespace orca {
namespace {

using std::chrono::milliseconds;

TEST(DeadlineTest, OfZeroHasPassedAtOnce) {
  const Deadline deadline = Deadline::After(milliseconds(0));
  EXPECT_TRUE(deadline.Passed());
  EXPECT_EQ(deadline.Left(), milliseconds(0));
}

TEST(DeadlineTest, InThePastLeavesNothingButNeverLess) {
  const Deadline deadline = Deadline::After(milliseconds(-5000));
  EXPECT_TRUE(deadline.Passed());
  EXPECT_EQ(deadline.Left(), milliseconds(0));
}

TEST(DeadlineTest, InTheFutureHasNotPassed) {
  const Deadline deadline = Deadline::After(std::chrono::hours(1));
  EXPECT_FALSE(deadline.Passed());
  EXPECT_LE(deadline.Left(), std::chrono::hours(1));
  EXPECT_GT(deadline.Left(), std::chrono::minutes(59));
  EXPECT_GT(deadline.at(), Deadline::Clock::now());
}

TEST(DeadlineTest, F28CountsOnTheMonotonicClock) { EXPECT_TRUE(Deadline::Clock::is_steady); }

}  // namespace
}  // namespace orca
