// Schedules against their formulas, and those that remember against hand-calculated trainings.
#include "orca/learn/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "net/expect_error.h"
#include "orca/core/error.h"

namespace orca::learn {
namespace {

using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr double kBase = 0.4;

std::vector<double> Rates(Schedule& schedule, int iterations, double decay = 0) {
  std::vector<double> rates;
  for (int i = 0; i < iterations; ++i) {
    rates.push_back(schedule.Rate({.rate = kBase, .decay = decay}, {.iteration = i}));
  }
  return rates;
}

void ExpectFormula(Schedule& schedule, const std::function<double(int)>& formula,
                   double decay = 0) {
  const std::vector<double> rates = Rates(schedule, 300, decay);
  for (int i = 0; i < 300; ++i) {
    EXPECT_THAT(rates[static_cast<std::size_t>(i)], DoubleNear(formula(i), 1e-14)) << i;
  }
}

TEST(ScheduleTest, DefaultDividesByTheIterations) {
  ExpectFormula(
      *DefaultSchedule(), [](int i) { return kBase / (1 + 0.03 * i); }, 0.03);
  ExpectFormula(*DefaultSchedule(), [](int) { return kBase; });
}

TEST(ScheduleTest, PolyReachesZeroAndStaysThere) {
  ExpectFormula(*PolySchedule(0.5, 120),
                [](int i) { return i > 120 ? 0 : kBase * std::sqrt(1 - i / 120.0); });
}

TEST(ScheduleTest, ExponentialIsSmoothOrAStaircase) {
  ExpectFormula(*ExponentialSchedule(10, 0.9, false),
                [](int i) { return kBase * std::exp(std::log(0.9) * i / 10.0); });
  ExpectFormula(*ExponentialSchedule(10, 0.9, true),
                [](int i) { return kBase * std::pow(0.9, i / 10); });
}

TEST(ScheduleTest, StepMultipliesAtEveryStep) {
  double rate = kBase;
  ExpectFormula(*StepSchedule(7, 0.8), [&rate](int i) {
    if (i > 0 && i % 7 == 0) rate *= 0.8;
    return rate;
  });
}

TEST(ScheduleTest, MultiStepMultipliesAtGivenIterations) {
  ExpectFormula(*MultiStepSchedule({2, 5, 5, 90}, 0.3), [](int i) {
    if (i < 2) return kBase;
    if (i < 5) return kBase * 0.3;
    return i < 90 ? kBase * 0.027 : kBase * 0.0081;
  });
}

TEST(ScheduleTest, WarmupRisesByDelta) {
  ExpectFormula(*WarmupSchedule(0.01), [](int i) { return kBase + 0.01 * i; });
}

// --- Plateau

std::vector<double> AfterEpochs(Schedule& schedule, const std::vector<double>& scores) {
  std::vector<double> rates;
  std::int64_t iteration = 0;
  for (std::size_t epoch = 0; epoch <= scores.size(); ++epoch) {
    const double score = epoch == 0 ? std::numeric_limits<double>::quiet_NaN() : scores[epoch - 1];
    for (int i = 0; i < 3; ++i) {
      const double rate = schedule.Rate({.rate = 1}, {.iteration = iteration++,
                                                      .epoch = static_cast<std::int64_t>(epoch) + 1,
                                                      .score = score});
      if (i == 0) {
        rates.push_back(rate);
      } else {
        EXPECT_EQ(rate, rates.back()) << "an epoch has one rate";
      }
    }
  }
  return rates;
}

TEST(PlateauTest, ReducesAfterPatienceEpochsWithoutImprovement) {
  const auto schedule =
      PlateauSchedule({.monitor = "score", .factor = 0.5, .patience = 2, .mode = "max"});
  // Better, better, same (1), worse (2), same: reduced; then it waits again, one epoch less: the
  // epoch of the reduction counts.
  EXPECT_THAT(AfterEpochs(*schedule, {0.1, 0.2, 0.2, 0.1, 0.2, 0.2, 0.2, 0.2, 0.3}),
              Pointwise(DoubleEq(), {1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.25}));
}

TEST(PlateauTest, CoolsDownAndStopsAtTheMinimum) {
  const auto schedule = PlateauSchedule({.monitor = "score",
                                         .factor = 0.1,
                                         .patience = 0,
                                         .mode = "min",
                                         .cooldown = 2,
                                         .min_rate = 0.05});
  EXPECT_THAT(AfterEpochs(*schedule, {5, 5, 5, 5, 5, 5, 5, 5}),
              Pointwise(DoubleEq(), {1.0, 1.0, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.05}));
}

TEST(PlateauTest, AnImprovementIsMoreThanEpsilon) {
  const auto schedule =
      PlateauSchedule({.monitor = "score", .factor = 0.5, .patience = 0, .epsilon = 0.1});
  EXPECT_THAT(AfterEpochs(*schedule, {1, 0.95, 0.8}), Pointwise(DoubleEq(), {1.0, 1.0, 0.5, 0.5}));
}

TEST(PlateauTest, ANumberThatIsMissingIsNamed) {
  const auto schedule = PlateauSchedule({.monitor = "Loss"});
  EXPECT_EQ(schedule->Rate({.rate = 2}, {}), 2);
  EXPECT_THAT(ErrorOf([&] { schedule->Rate({}, {.epoch = 2, .score = 1}); }),
              IsError(Code::kFailedPrecondition, HasSubstr("watches the Loss")));
}

// --- sequences

TEST(SequenceTest, APartTakesOverTheRateOfItsPredecessor) {
  const auto schedule = SequentialSchedule({{WarmupSchedule(0.1), 5}, {StepSchedule(2, 0.5), 4}});
  // The warm-up has iterations 0 to 5; the steps count from iteration 5, and go on for ever.
  EXPECT_THAT(Rates(*schedule, 12),
              Pointwise(DoubleNear(1e-12),
                        {0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9, 0.45, 0.45, 0.225, 0.225, 0.1125}));
}

TEST(SequenceTest, PolyCountsFromTheBeginningOfTheTraining) {
  const auto schedule = SequentialSchedule({{DefaultSchedule(), 10}, {PolySchedule(1, 40), 30}});
  const std::vector<double> rates = Rates(*schedule, 41);
  EXPECT_DOUBLE_EQ(rates[10], kBase);
  EXPECT_DOUBLE_EQ(rates[11], kBase * (1 - 11 / 40.0));
  EXPECT_DOUBLE_EQ(rates[40], 0);
}

TEST(SequenceTest, StartsAnywhereWithTheSameRates) {
  const auto make = [] {
    return SequentialSchedule({{WarmupSchedule(0.1), 5},
                               {StepSchedule(2, 0.5), 4},
                               {ExponentialSchedule(3, 0.9, false), 9}});
  };
  const std::vector<double> rates = Rates(*make(), 30);
  for (std::int64_t i = 0; i < 30; ++i) {
    EXPECT_DOUBLE_EQ(make()->Rate({.rate = kBase}, {.iteration = i}),
                     rates[static_cast<std::size_t>(i)])
        << i;
  }
}

TEST(SequenceTest, AskingTwiceChangesNothing) {
  const auto once = SequentialSchedule({{WarmupSchedule(0.1), 2}, {StepSchedule(1, 0.5), 2}});
  const auto twice = SequentialSchedule({{WarmupSchedule(0.1), 2}, {StepSchedule(1, 0.5), 2}});
  for (std::int64_t i = 0; i < 10; ++i) {
    twice->Rate({.rate = kBase}, {.iteration = i});
    EXPECT_EQ(twice->Rate({.rate = kBase}, {.iteration = i}),
              once->Rate({.rate = kBase}, {.iteration = i}));
  }
}

TEST(ScheduleStateTest, ARestoredScheduleGoesOnAsTheFirst) {
  const auto make = [] {
    return SequentialSchedule(
        {{WarmupSchedule(0.1), 4},
         {PlateauSchedule({.monitor = "Loss", .factor = 0.5, .patience = 1}), 100}});
  };
  const auto at = [](std::int64_t i) {
    const double loss = i < 12 ? 10.0 - static_cast<double>(i) : 1.0;
    return SchedulePoint{.iteration = i, .epoch = i / 3 + 1, .loss = loss};
  };
  for (std::int64_t stop = 1; stop < 30; ++stop) {
    const auto whole = make();
    const auto first = make();
    for (std::int64_t i = 0; i < stop; ++i) {
      whole->Rate({.rate = 1}, at(i));
      first->Rate({.rate = 1}, at(i));
    }
    const auto second = make();
    second->Restore(first->State());
    for (std::int64_t i = stop; i < 40; ++i) {
      ASSERT_EQ(second->Rate({.rate = 1}, at(i)), whole->Rate({.rate = 1}, at(i))) << i;
    }
  }
}

TEST(ScheduleStateTest, AnotherSchedulesStateIsRefused) {
  EXPECT_THAT(ErrorOf([] { DefaultSchedule()->Restore(std::vector<double>{1}); }),
              IsError(Code::kInvalidArgument, HasSubstr("a state of 1 numbers")));
  const auto sequence = SequentialSchedule({{DefaultSchedule(), 1}});
  for (const double bad : {-1.0, 1.0, std::nan(""), 1e300}) {
    EXPECT_THAT(ErrorOf([&] {
                  sequence->Restore(std::vector<double>{bad, 0, 0, 0});
                }),
                IsError(Code::kInvalidArgument, HasSubstr("restore it into the sequence")));
    if (bad == 1.0 || bad == -1.0) continue;
    EXPECT_THAT(ErrorOf([&] {
                  sequence->Restore(std::vector<double>{0, 0, 0, bad});
                }),
                IsError(Code::kInvalidArgument, HasSubstr("a count must be")));
  }
}

TEST(ScheduleTest, ArgumentsThatCannotWorkAreRefused) {
  const std::vector<std::function<void()>> bad = {
      [] { PolySchedule(1, 0); },
      [] { PolySchedule(std::nan(""), 1); },
      [] { ExponentialSchedule(0, 0.5, false); },
      [] { StepSchedule(-1, 0.5); },
      [] { StepSchedule(1, std::numeric_limits<double>::infinity()); },
      [] {
        MultiStepSchedule({5, 2}, 0.5);
      },
      [] { PlateauSchedule({.monitor = "loss"}); },
      [] { PlateauSchedule({.factor = 1}); },
      [] { PlateauSchedule({.mode = "auto"}); },
      [] { PlateauSchedule({.patience = -1}); },
      [] { SequentialSchedule({}); },
      [] {
        SequentialSchedule({{nullptr, 1}});
      },
      [] {
        SequentialSchedule({{DefaultSchedule(), 0}});
      },
  };
  for (std::size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(ErrorOf(bad[i]).code(), Code::kInvalidArgument) << i;
  }
}

}  // namespace
}  // namespace orca::learn
