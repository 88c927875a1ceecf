// The laws of all parameters against their exact distributions, by 100,000 draws each.
#include "orca/tune/space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "net/expect_error.h"
#include "orca/core/error.h"
#include "tune/normal.h"
#include "tune/philox.h"

namespace orca::tune {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kDraws = 100000;
constexpr std::uint64_t kSeed = 7;

std::vector<double> Draws(const Parameter& parameter) {
  const Space space({parameter});
  std::vector<double> draws;
  for (int i = 0; i < kDraws; ++i) {
    draws.push_back(space.Draw(kSeed, i)[0]);
    parameter.Check(draws.back());
  }
  return draws;
}

// Kolmogorov and Smirnov: a right law exceeds 1.95 once in a thousand times.
void ExpectDistribution(const Parameter& parameter, const std::function<double(double)>& cdf) {
  std::vector<double> draws = Draws(parameter);
  std::sort(draws.begin(), draws.end());
  double distance = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double expected = cdf(draws[static_cast<std::size_t>(i)]);
    distance = std::max({distance, std::abs(expected - static_cast<double>(i) / kDraws),
                         std::abs(expected - static_cast<double>(i + 1) / kDraws)});
  }
  EXPECT_LT(distance * std::sqrt(kDraws), 1.95) << parameter.name;
}

// Chi squared, five standard deviations above its mean. Values that `mass` does not have must not
// come.
void ExpectMasses(const Parameter& parameter, const std::map<double, double>& mass) {
  std::map<double, int> counts;
  for (const double value : Draws(parameter)) {
    // The same multiple of a step may differ in its last bit.
    const auto near = mass.lower_bound(value - 1e-9);
    ASSERT_TRUE(near != mass.end() && near->first < value + 1e-9) << value;
    ++counts[near->first];
  }
  double total = 0;
  double statistic = 0;
  for (const auto& [value, probability] : mass) {
    total += probability;
    const double expected = probability * kDraws;
    ASSERT_GT(expected, 5) << value;
    statistic += std::pow(counts[value] - expected, 2) / expected;
  }
  EXPECT_THAT(total, DoubleNear(1, 1e-9));
  const double freedom = static_cast<double>(mass.size()) - 1;
  EXPECT_LT(statistic, freedom + 5 * std::sqrt(2 * freedom)) << parameter.name;
  EXPECT_EQ(parameter.first(), mass.begin()->first);
  EXPECT_EQ(parameter.last(), mass.rbegin()->first);
  EXPECT_EQ(parameter.Cardinality(), static_cast<double>(mass.size()));
}

TEST(PhiloxTest, GivesTheNumbersOfItsAuthors) {
  // The known answers of the Random123 library.
  EXPECT_THAT(Philox({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(Philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(NormalTest, HasScipysValues) {
  EXPECT_THAT(LogNdtr(-1), DoubleNear(-1.8410216450092634, 1e-14));
  EXPECT_THAT(LogNdtr(-10), DoubleNear(-53.23128515051247, 1e-12));
  EXPECT_THAT(LogNdtr(-30), DoubleNear(-454.32124395634327, 1e-11));
  EXPECT_THAT(LogNdtr(7), DoubleNear(-1.279812543886654e-12, 1e-24));
  EXPECT_THAT(Ndtri(0.975), DoubleNear(1.959963984540054, 1e-14));
  EXPECT_THAT(Ndtri(1e-10), DoubleNear(-6.361340902404056, 1e-13));
  for (const double p : {1e-15, 1e-6, 0.02, 0.3, 0.5, 0.77, 0.999}) {
    EXPECT_THAT(Ndtr(Ndtri(p)) / p, DoubleNear(1, 1e-13)) << p;
  }
}

TEST(SpaceTest, UniformFillsItsRange) {
  ExpectDistribution(Uniform("x", -3, 5), [](double x) { return (x + 3) / 8; });
}

TEST(SpaceTest, LogUniformIsUniformInTheLogarithm) {
  ExpectDistribution(LogUniform("x", 1e-4, 10),
                     [](double x) { return std::log(x / 1e-4) / std::log(1e5); });
}

TEST(SpaceTest, NormalHasMeanAndDeviation) {
  ExpectDistribution(Normal("x", 2, 0.5), [](double x) { return Ndtr((x - 2) / 0.5); });
}

TEST(SpaceTest, QUniformGivesItsEndsHalfTheWeight) {
  ExpectMasses(QUniform("x", 0, 2, 0.5),
               {{0, 0.125}, {0.5, 0.25}, {1, 0.25}, {1.5, 0.25}, {2, 0.125}});
  ExpectMasses(QUniform("x", -0.1, 0.2, 0.1),
               {{-0.1, 1. / 6}, {0, 1. / 3}, {0.1, 1. / 3}, {0.2, 1. / 6}});
}

TEST(SpaceTest, QLogUniformRoundsALogUniformNumber) {
  const auto up_to = [](double x) { return std::log(x) / std::log(5); };
  ExpectMasses(QLogUniform("x", 1, 5, 1), {{1, up_to(1.5)},
                                           {2, up_to(2.5) - up_to(1.5)},
                                           {3, up_to(3.5) - up_to(2.5)},
                                           {4, up_to(4.5) - up_to(3.5)},
                                           {5, 1 - up_to(4.5)}});
}

TEST(SpaceTest, QNormalRoundsANormalNumber) {
  std::map<double, int> counts;
  for (const double value : Draws(QNormal("x", 0, 1, 2))) ++counts[value];
  const double middle = Ndtr(1) - Ndtr(-1);
  EXPECT_THAT(counts[0] / double{kDraws}, DoubleNear(middle, 0.005));
  EXPECT_THAT(counts[2] / double{kDraws}, DoubleNear(Ndtr(3) - Ndtr(1), 0.005));
}

TEST(SpaceTest, IntegerLeavesItsUpperEndOut) {
  ExpectMasses(Integer("x", -1, 3), {{-1, 0.25}, {0, 0.25}, {1, 0.25}, {2, 0.25}});
}

TEST(SpaceTest, QIntegerRoundsIntegersBelowTheUpperEnd) {
  ExpectMasses(QInteger("x", 2, 6, 1), {{2, 0.25}, {3, 0.25}, {4, 0.25}, {5, 0.25}});
  // 0..11: 0 1 -> 0, 2 3 4 -> 3, 5 6 7 -> 6, 8 9 10 -> 9, 11 -> 12.
  ExpectMasses(QInteger("x", -1, 13, 3),
               {{0, 2. / 12}, {3, 3. / 12}, {6, 3. / 12}, {9, 3. / 12}, {12, 1. / 12}});
  // Half to even: 0..7 -> 0 0 2 4 4 4 6 8.
  ExpectMasses(QInteger("x", 0, 8, 2),
               {{0, 2. / 8}, {2, 1. / 8}, {4, 3. / 8}, {6, 1. / 8}, {8, 1. / 8}});
}

TEST(SpaceTest, LogIntegerTakesTheFloorOfALogUniformNumber) {
  std::map<double, double> mass;
  for (int i = 1; i < 9; ++i) mass[i] = std::log((i + 1.0) / i) / std::log(9);
  ExpectMasses(LogInteger("x", 1, 9), mass);
}

TEST(SpaceTest, QLogIntegerRoundsIt) {
  const auto below = [](double x) { return std::log(x / 3) / std::log(4); };
  ExpectMasses(
      QLogInteger("x", 3, 12, 3),
      {{3, below(5)}, {6, below(8) - below(5)}, {9, below(11) - below(8)}, {12, 1 - below(11)}});
}

TEST(SpaceTest, ChoicesAreEquallyLikely) {
  ExpectMasses(Choice("x", 5), {{0, 0.2}, {1, 0.2}, {2, 0.2}, {3, 0.2}, {4, 0.2}});
}

TEST(SpaceTest, ASubsetIsAnOrderedDrawWithoutReplacement) {
  const Space space(Subset("x", 3, 1, 3));
  std::map<std::vector<int>, int> counts;
  for (int i = 0; i < kDraws; ++i) {
    const Point point = space.Draw(kSeed, i);
    std::vector<int> order = {0, 1, 2};
    std::sort(order.begin(), order.end(),
              [&](int a, int b) { return point[1 + a] < point[1 + b]; });
    order.resize(static_cast<std::size_t>(point[0]));
    ++counts[order];
  }
  EXPECT_EQ(counts.size(), 9);  // Half of one thing, half of two.
  for (const auto& [order, count] : counts) {
    EXPECT_THAT(static_cast<double>(count),
                DoubleNear(kDraws / 2.0 / (order.size() == 1 ? 3 : 6), 600));
  }
}

TEST(SpaceTest, TheFirstGridParameterByNameIsTheFastest) {
  const Space space({Grid("b", 2), Uniform("u", 0, 1), Grid("a", 3)});
  EXPECT_EQ(space.grid_cells(), 6);
  std::vector<std::pair<double, double>> cells;
  std::set<double> uniform;
  for (int trial = 0; trial < 7; ++trial) {
    const Point point = space.Draw(1, trial);
    cells.emplace_back(point[2], point[0]);
    uniform.insert(point[1]);
  }
  using Cell = std::pair<double, double>;
  EXPECT_THAT(cells, ElementsAre(Cell{0, 0}, Cell{1, 0}, Cell{2, 0}, Cell{0, 1}, Cell{1, 1},
                                 Cell{2, 1}, Cell{0, 0}));
  EXPECT_EQ(uniform.size(), 7);
}

TEST(SpaceTest, AParametersDrawsDoNotDependOnTheOthers) {
  const Space alone({Uniform("x", 0, 1)});
  const Space both({Choice("c", 9), Uniform("x", 0, 1)});
  for (int trial = 0; trial < 100; ++trial) {
    EXPECT_EQ(alone.Draw(3, trial)[0], both.Draw(3, trial)[1]);
    EXPECT_NE(alone.Draw(3, trial)[0], alone.Draw(4, trial)[0]);
    EXPECT_NE(alone.Draw(3, trial)[0], alone.Redraw(3, trial, 1)[0]);
  }
}

TEST(SpaceTest, AParameterExistsOnlyWhereItsParentHasItsChoice) {
  const Space space({Choice("model", 2), When(Choice("kernel", 2), "model", 1),
                     When(Uniform("gamma", 0, 1), "kernel", 0)});
  int with_gamma = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const Point point = space.Draw(kSeed, trial);
    EXPECT_EQ(std::isnan(point[1]), point[0] == 0);
    EXPECT_EQ(std::isnan(point[2]), point[1] != 0);
    with_gamma += !std::isnan(point[2]);
    space.Check(point);
  }
  EXPECT_THAT(static_cast<double>(with_gamma), DoubleNear(250, 60));
  EXPECT_THAT(ErrorOf([&] {
                space.Check({0, 1, NAN});
              }),
              IsError(Code::kInvalidArgument, HasSubstr("kernel has a value")));
}

TEST(SpaceTest, CompleteKeepsWhatIsGiven) {
  const Space space(
      {Choice("model", 2), When(Uniform("gamma", 0, 1), "model", 1), Uniform("x", 0, 1)});
  Point point = {1, NAN, 0.25};
  space.Complete(point, 1, 0);
  space.Check(point);
  EXPECT_EQ(point[2], 0.25);
  Point other = {0, 0.5, NAN};
  space.Complete(other, 1, 0);
  EXPECT_TRUE(std::isnan(other[1]));
}

TEST(SpaceTest, UnitCoordinatesInvert) {
  const std::vector<Parameter> all = {Uniform("x", -3, 5),        QUniform("x", 0, 2, 0.5),
                                      LogUniform("x", 1e-4, 10),  QLogUniform("x", 1, 5, 1),
                                      Normal("x", 2, 0.5),        Integer("x", -1, 30),
                                      QInteger("x", 0, 8, 2),     LogInteger("x", 1, 900),
                                      QLogInteger("x", 3, 12, 3), Choice("x", 5)};
  for (const Parameter& parameter : all) {
    const Space space({parameter});
    for (int trial = 0; trial < 200; ++trial) {
      const double value = space.Draw(1, trial)[0];
      const double unit = parameter.ToUnit(value);
      EXPECT_GE(unit, 0);
      EXPECT_LE(unit, 1);
      EXPECT_THAT(parameter.FromUnit(unit), DoubleNear(value, 1e-9 * (1 + std::abs(value))));
    }
    if (parameter.law == Law::kNormal) continue;
    parameter.Check(parameter.FromUnit(0));
    parameter.Check(parameter.FromUnit(1));
  }
}

TEST(SpaceTest, EnumerateVisitsEveryPoint) {
  const Space space(
      {Choice("c", 2), QUniform("q", -0.1, 0.2, 0.1), When(Integer("i", 0, 3), "c", 1)});
  EXPECT_EQ(space.Cardinality(), 4 + 12);
  std::set<std::string> points;
  for (int i = 0; i < 16; ++i) {
    const Point point = space.Enumerate(i);
    space.Check(point);
    points.insert(::testing::PrintToString(point));
  }
  EXPECT_EQ(points.size(), 4 + 12);
  const Space deep({Choice("a", 3), When(Choice("b", 2), "a", 1), When(Integer("c", 0, 5), "b", 0),
                    When(Choice("d", 4), "a", 1), Choice("e", 2)});
  ASSERT_EQ(deep.Cardinality(), 2 * (1 + (5 + 1) * 4 + 1));
  points.clear();
  for (int i = 0; i < 52; ++i) {
    const Point point = deep.Enumerate(i);
    deep.Check(point);
    points.insert(::testing::PrintToString(point));
  }
  EXPECT_EQ(points.size(), 52U);
  EXPECT_TRUE(std::isinf(Space({Uniform("x", 0, 1)}).Cardinality()));
}

TEST(SpaceTest, MultiplesOfAStepDoNotLeaveTheirEnds) {
  for (const auto& [low, high, step] :
       {std::tuple(0.1, 0.7, 0.1), std::tuple(-0.7, -0.1, 0.1), std::tuple(0.3, 1.7, 0.1)}) {
    const Parameter p = QUniform("q", low, high, step);
    for (int i = 0; i <= 1000; ++i) {
      const double value = p.Quantile(i / 1001.0);
      EXPECT_GE(value, low);
      EXPECT_LE(value, high);
      p.Check(value);
    }
  }
  QUniform("q", 0.1, 0.7, 0.1).Check(0.1 * 7);  // As files of before have it.
  EXPECT_THAT(ErrorOf([] { QUniform("q", 0.1, 0.7, 0.1).Check(0.8); }),
              IsError(Code::kInvalidArgument, HasSubstr("0.8")));
  EXPECT_THAT(ErrorOf([] { Uniform("x", -1e308, 1e308); }),
              IsError(Code::kInvalidArgument, HasSubstr("nearer ends")));
}

TEST(SpaceTest, ValuesKeepTheirTypes) {
  const Parameter choice = Choice("x", std::vector<Value>{std::int64_t{1}, std::string("a"), true});
  EXPECT_EQ(choice.Decode(0), Value(std::int64_t{1}));
  EXPECT_EQ(choice.Decode(1), Value(std::string("a")));
  EXPECT_EQ(choice.Encode(Value(true)), 2);
  EXPECT_EQ(Integer("x", 0, 3).Decode(2), Value(std::int64_t{2}));
  EXPECT_EQ(Uniform("x", 0, 3).Decode(2), Value(2.0));
}

TEST(SpaceTest, BadParametersAreRefused) {
  const auto refuses = [](const auto& make, const std::string& text) {
    EXPECT_THAT(ErrorOf(make), IsError(Code::kInvalidArgument, HasSubstr(text)));
  };
  refuses([] { Uniform("x", 1, 1); }, "the range [1, 1) is empty");
  refuses([] { Uniform("x", 0, INFINITY); }, "finite ends");
  refuses([] { LogUniform("x", 0, 1); }, "lower end 0 of a logarithmic range is not positive");
  refuses([] { QUniform("x", 0, 1, 0.3); }, "end 1 is not a multiple of the step 0.3");
  refuses([] { QUniform("x", 0, 1, -1); }, "step -1 is not positive");
  refuses([] { Normal("x", 0, 0); }, "standard deviation 0");
  refuses([] { QInteger("x", 1, 2, 5); }, "no two multiples of 5");
  refuses([] { Choice("x", 0); }, "nothing to choose from");
  refuses([] { Subset("x", 3, 2, 2); }, "cannot take 2 to 1");
  refuses([] { Space({}); }, "the search space is empty");
  refuses([] { Space({Uniform("x", 0, 1), Choice("x", 2)}); }, "two parameters x");
  refuses(
      [] {
        Space({When(Uniform("x", 0, 1), "c", 0), Choice("c", 2)});
      },
      "no category before it");
  refuses([] { Space({Choice("c", 2), When(Grid("g", 2), "c", 0)}); }, "a grid cannot depend");
  refuses([] { Space({Uniform("x", 0, 1)}).Index("y"); }, "there is no parameter y; known: x");
  refuses([] { Uniform("x", 0, 1).Check(2); }, "2 is not a value of the parameter");
}

}  // namespace
}  // namespace orca::tune
