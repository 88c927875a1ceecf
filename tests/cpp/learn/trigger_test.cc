// Triggers: the formulas of BigDL, over every progress that a training can make.
#include "orca/learn/trigger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "net/expect_error.h"
#include "orca/core/error.h"

namespace orca::learn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// When `trigger` fires in a training of 3 epochs of 4 iterations, asked after every iteration: the
// counters have grown by then.
std::vector<std::int64_t> FiringsOf(Trigger& trigger) {
  std::vector<std::int64_t> fired;
  for (std::int64_t done = 1; done <= 12; ++done) {
    if (trigger.Fires({.epoch = done / 4 + 1, .iteration = done + 1})) fired.push_back(done);
  }
  return fired;
}

TEST(TriggerTest, MaxEpochFiresWhenTheEpochsAreDone) {
  EXPECT_THAT(FiringsOf(*MaxEpoch(2)), ElementsAre(8, 9, 10, 11, 12));
}

TEST(TriggerTest, MaxIterationFiresWhenTheIterationsAreDone) {
  EXPECT_THAT(FiringsOf(*MaxIteration(10)), ElementsAre(10, 11, 12));
}

TEST(TriggerTest, EveryEpochFiresOnceAnEpochAndNotTheFirstTime) {
  EXPECT_THAT(FiringsOf(*EveryEpoch()), ElementsAre(4, 8, 12));
  EXPECT_FALSE(EveryEpoch()->Fires({.epoch = 7}));
}

TEST(TriggerTest, EveryEpochBeginsAnewWhenTheEpochsDo) {
  const auto trigger = EveryEpoch();
  EXPECT_FALSE(trigger->Fires({.epoch = 5}));
  EXPECT_FALSE(trigger->Fires({.epoch = 1}));
  EXPECT_TRUE(trigger->Fires({.epoch = 2}));
}

TEST(TriggerTest, SeveralIterationFiresAtMultiplesButNotAtZero) {
  const auto trigger = SeveralIteration(3);
  for (std::int64_t iteration = 0; iteration < 100; ++iteration) {
    EXPECT_EQ(trigger->Fires({.iteration = iteration}), iteration > 0 && iteration % 3 == 0);
  }
}

TEST(TriggerTest, ScoresAndLossesAreComparedStrictly) {
  EXPECT_TRUE(MaxScore(0.5)->Fires({.score = 0.51}));
  EXPECT_FALSE(MaxScore(0.5)->Fires({.score = 0.5}));
  EXPECT_TRUE(MinLoss(0.5)->Fires({.loss = 0.49}));
  EXPECT_FALSE(MinLoss(0.5)->Fires({.loss = 0.5}));
}

TEST(TriggerTest, WhatIsNotKnownYetDoesNotFire) {
  EXPECT_FALSE(MaxScore(-1e300)->Fires({}));
  EXPECT_FALSE(MinLoss(1e300)->Fires({}));
}

TEST(TriggerTest, AndWantsAllAndOrWantsAny) {
  for (const double loss : {0.0, 1.0}) {
    for (const std::int64_t epoch : {1, 2}) {
      const TrainProgress progress{.epoch = epoch, .loss = loss};
      EXPECT_EQ(And({MinLoss(0.5), MaxEpoch(1)})->Fires(progress), loss < 0.5 && epoch > 1);
      EXPECT_EQ(Or({MinLoss(0.5), MaxEpoch(1)})->Fires(progress), loss < 0.5 || epoch > 1);
    }
  }
}

TEST(TriggerTest, ACombinationAsksEveryOneEveryTime) {
  const auto trigger = And({MinLoss(0.5), EveryEpoch()});
  EXPECT_FALSE(trigger->Fires({.epoch = 1, .loss = 0.9}));
  EXPECT_TRUE(trigger->Fires({.epoch = 2, .loss = 0.1}));
}

TEST(TriggerTest, ACountThatIsNotPositiveIsRefused) {
  for (const auto make : {&MaxEpoch, &MaxIteration, &SeveralIteration}) {
    for (const std::int64_t count : {0, -3}) {
      EXPECT_THAT(ErrorOf([&] { make(count); }),
                  IsError(Code::kInvalidArgument, HasSubstr("is not positive")));
    }
  }
  EXPECT_THAT(ErrorOf([] { MaxScore(std::nan("")); }),
              IsError(Code::kInvalidArgument, HasSubstr("MaxScore(nan)")));
  EXPECT_THAT(ErrorOf([] { And({}); }),
              IsError(Code::kInvalidArgument, HasSubstr("give one or more")));
}

}  // namespace
}  // namespace orca::learn
