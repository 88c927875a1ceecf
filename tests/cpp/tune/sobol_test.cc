// Sobol points against scipy's and against what defines them.
#include "tune/sobol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <utility>
#include <vector>

namespace orca::tune {
namespace {

using ::testing::DoubleNear;

TEST(SobolTest, UnscrambledPointsAreScipys) {
  // scipy.stats.qmc.Sobol(1111, scramble=False): point 5 of its Gray order is point 7 of the plain
  // one.
  const Sobol sobol(1111, 0);
  const std::vector<std::pair<std::size_t, double>> expected = {
      {0, 0.64093017578125},   {1, 0.81341552734375},   {2, 0.16033935546875},
      {3, 0.52679443359375},   {10, 0.07427978515625},  {100, 0.53948974609375},
      {777, 0.09234619140625}, {1110, 0.43109130859375}};
  for (const auto& [dimension, value] : expected) {
    EXPECT_THAT(sobol.At(10277, dimension), DoubleNear(value, 1e-9)) << dimension;
  }
}

TEST(SobolTest, EveryIntervalOfADimensionHasOnePoint) {
  for (const std::uint64_t seed : {0, 1, 2}) {
    const Sobol sobol(1111, seed);
    for (const std::size_t dimension : {0, 1, 2, 17, 500, 1110}) {
      std::set<int> intervals;
      for (std::uint64_t i = 0; i < 1024; ++i) {
        intervals.insert(static_cast<int>(sobol.At(i, dimension) * 1024));
      }
      EXPECT_EQ(intervals.size(), 1024) << dimension;
    }
  }
}

TEST(SobolTest, EveryElementaryIntervalOfTwoDimensionsHasOnePoint) {
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    const Sobol sobol(2, seed);
    for (int bits = 0; bits <= 8; ++bits) {
      std::set<std::pair<int, int>> cells;
      for (std::uint64_t i = 0; i < 256; ++i) {
        cells.emplace(static_cast<int>(std::ldexp(sobol.At(i, 0), bits)),
                      static_cast<int>(std::ldexp(sobol.At(i, 1), 8 - bits)));
      }
      EXPECT_EQ(cells.size(), 256) << bits;
    }
  }
}

// Warnock's formula for the L2 star discrepancy.
double Discrepancy(const Sobol& sobol, std::uint64_t n) {
  const std::size_t dims = sobol.dimensions();
  double single = 0;
  double pairs = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    double product = 1;
    for (std::size_t d = 0; d < dims; ++d) product *= 1 - std::pow(sobol.At(i, d), 2);
    single += product;
    for (std::uint64_t j = 0; j < n; ++j) {
      double other = 1;
      for (std::size_t d = 0; d < dims; ++d) {
        other *= 1 - std::max(sobol.At(i, d), sobol.At(j, d));
      }
      pairs += other;
    }
  }
  const auto count = static_cast<double>(n);
  return std::sqrt(std::pow(3.0, -static_cast<double>(dims)) -
                   std::pow(2.0, 1 - static_cast<double>(dims)) / count * single +
                   pairs / count / count);
}

TEST(SobolTest, DiscrepancyFallsAboutAsOneOverN) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    const Sobol sobol(3, seed);
    // Random points would gain a factor of 4.
    EXPECT_GT(Discrepancy(sobol, 32) / Discrepancy(sobol, 512), 8);
  }
}

TEST(SobolTest, SeedsGiveOtherPoints) { EXPECT_NE(Sobol(1, 1).At(5, 0), Sobol(1, 2).At(5, 0)); }

}  // namespace
}  // namespace orca::tune
