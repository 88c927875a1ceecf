// Sums without rounding, against the processor's own correctly rounded additions.
#include "learn/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "orca/core/error.h"
#include "testing/seed.h"

namespace orca::learn {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kSmallest = std::numeric_limits<double>::denorm_min();

double Sum(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.Add(value);
  return sum.Value();
}

// Any finite bits: all exponents are equally likely, subnormals among them.
double AnyDouble(std::mt19937_64& random) {
  for (;;) {
    const auto value = std::bit_cast<double>(static_cast<std::uint64_t>(random()));
    if (std::isfinite(value)) return value;
  }
}

TEST(ExactSumTest, TwoDoublesAddAsTheProcessorAddsThem) {
  std::mt19937_64 random(testing::TestSeed());
  for (int i = 0; i < 200000; ++i) {
    const double a = AnyDouble(random);
    // Half of them near a, where the digits overlap.
    const double near = std::ldexp(-a, static_cast<int>(random() % 120) - 60) *
                        (1 + static_cast<double>(random() % 1000) / 1024);
    const double b = i % 2 == 0 ? AnyDouble(random) : near;
    if (!std::isfinite(b)) continue;
    ASSERT_EQ(Sum({a, b}), a + b) << std::hexfloat << a << " + " << b;
  }
}

TEST(ExactSumTest, AProductAndASumAreAsOneFusedOperation) {
  std::mt19937_64 random(testing::TestSeed());
  std::uniform_real_distribution<double> numbers(-1e3, 1e3);
  for (int i = 0; i < 100000; ++i) {
    const double a = numbers(random);
    const double b = numbers(random);
    const double c = i % 2 == 0 ? numbers(random) : -a * b;
    ExactSum sum;
    sum.AddProduct(a, b);
    sum.Add(c);
    ASSERT_EQ(sum.Value(), std::fma(a, b, c)) << std::hexfloat << a << " " << b << " " << c;
  }
}

TEST(ExactSumTest, NothingIsLostBetweenLargeNumbers) {
  EXPECT_EQ(Sum({}), 0.0);
  EXPECT_EQ(Sum({kLargest, kSmallest, -kLargest}), kSmallest);
  EXPECT_EQ(Sum({kLargest, kLargest, -kLargest}), kLargest);
  EXPECT_EQ(Sum({1e16, 1.0, -1e16}), 1.0);
  EXPECT_EQ(Sum(std::vector<double>(10, 0.1)), 1.0);
  EXPECT_EQ(Sum({-kSmallest, -kSmallest}), -2 * kSmallest);
  EXPECT_EQ(Sum({kLargest, kLargest}), kInfinity);
  EXPECT_EQ(Sum({-kLargest, -kLargest}), -kInfinity);
}

TEST(ExactSumTest, RoundsToTheNearestAndHalvesToEven) {
  const double unit = 0x1p-52;  // the last place of 1
  EXPECT_EQ(Sum({1, unit / 2}), 1.0);
  EXPECT_EQ(Sum({1, unit / 2, kSmallest}), 1 + unit);
  EXPECT_EQ(Sum({1, unit, unit / 2}), 1 + 2 * unit);
  EXPECT_EQ(Sum({1, unit, unit / 2, -kSmallest}), 1 + unit);
  EXPECT_EQ(Sum({-1, -unit, -unit / 2}), -1 - 2 * unit);
}

TEST(ExactSumTest, AnyOrderAndSplitGivesTheSameBytes) {
  std::mt19937_64 random(testing::TestSeed());
  for (int round = 0; round < 20; ++round) {
    std::vector<double> values(1 + random() % 3000);
    for (double& value : values) value = AnyDouble(random);
    std::vector<std::byte> first;
    for (int order = 0; order < 5; ++order) {
      std::shuffle(values.begin(), values.end(), random);
      std::vector<ExactSum> parts(1 + random() % 5);
      const std::span<const double> all = values;
      const std::size_t together = random() % values.size();  // these are added at once
      parts[0].AddAll(all.first(together));
      for (const double value : all.subspan(together)) parts[random() % parts.size()].Add(value);
      ExactSum sum;
      for (const ExactSum& part : parts) sum.Add(part);
      StateWriter writer("x");
      sum.Write(writer);
      const auto bytes = writer.Take();
      if (first.empty()) first = bytes;
      ASSERT_EQ(bytes, first);
    }
    ExactSum none;
    for (const double value : values) none.Add(value);
    for (const double value : values) none.Add(-value);
    ASSERT_EQ(none.Value(), 0.0);
  }
}

TEST(ExactSumTest, ManyLargeMantissasAtOnceDoNotOverflow) {
  const double value = 2 - 0x1p-52;  // all bits of the mantissa
  for (const double sign : {1.0, -1.0}) {
    ExactSum sum;
    sum.AddAll(std::vector<double>(4096, sign * value));
    EXPECT_EQ(sum.Value(), 4096 * sign * value);
  }
  std::vector<double> values(1000, 1.0);
  values[500] = kInfinity;
  ExactSum sum;
  sum.AddAll(values);
  EXPECT_EQ(sum.Value(), kInfinity);
}

TEST(ExactSumTest, InfinitiesAndNaNsAreKept) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(Sum({1, kInfinity}), kInfinity);
  EXPECT_EQ(Sum({1, -kInfinity}), -kInfinity);
  EXPECT_TRUE(std::isnan(Sum({kInfinity, -kInfinity})));
  EXPECT_TRUE(std::isnan(Sum({1, nan, kInfinity})));
}

TEST(ExactSumTest, ComesBackFromItsBytes) {
  for (const double value : {0.0, 1.5, -1e300, kSmallest, kInfinity, -kInfinity}) {
    ExactSum sum;
    sum.Add(value);
    StateWriter writer("x");
    sum.Write(writer);
    const auto bytes = writer.Take();
    StateReader reader("x", bytes);
    EXPECT_EQ(ExactSum::Read(reader).Value(), value);
    reader.Finish();
  }
}

TEST(ExactSumTest, RefusesBytesThatNoSumWrites) {
  StateWriter writer("x");
  ExactSum().Write(writer);
  const auto good = writer.Take();
  // The marks, the first limb and the last: more than each can hold.
  const std::size_t marks = good.size() - 69 * sizeof(std::uint64_t);
  for (const std::size_t at : {marks + 1, marks + 8 + 4, good.size() - 1}) {
    auto bad = good;
    bad[at] = std::byte{0x40};
    StateReader reader("x", bad);
    EXPECT_THROW(ExactSum::Read(reader), Error) << at;
  }
  StateReader cut("x", std::span(good).first(good.size() - 1));
  EXPECT_THROW(ExactSum::Read(cut), Error);
}

}  // namespace
}  // namespace orca::learn
