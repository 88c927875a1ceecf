// The loops of samplers: every instruction set against plain formulas, and bit by bit against the
// others.
#include "tune/loops.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tune/philox.h"

namespace orca::tune {
namespace {

using ::testing::DoubleNear;

std::vector<double> Numbers(Stream& random, std::size_t count) {
  std::vector<double> numbers(count);
  for (double& number : numbers) number = 6 * random.Uniform() - 3;
  return numbers;
}

// Kernels of TPE at random places, some of which weigh nothing; and queries near some of them.
struct Densities {
  Densities(std::size_t kernel_count, std::size_t dimensions, double narrowness)
      : count(kernel_count), dims(dimensions) {
    Stream random(1, static_cast<std::int64_t>(count), dims);
    tiles = Numbers(random, 2 * count * dims);
    for (std::size_t at = 0; at < tiles.size(); ++at) {
      if (at / kLanes % 2 == 1) tiles[at] = narrowness * (0.1 + random.Uniform());
    }
    weights = Numbers(random, count);
    for (double& weight : weights) weight = std::abs(weight) / 3;
    start = Numbers(random, kQueries * count);
    start[count - 1] = -1e300;
    x = Numbers(random, kQueries * (dims + 1));
    for (std::size_t d = 0; d < dims; ++d) x[d] = tiles[2 * d * kLanes] + 0.01;
  }

  std::vector<double> Sums(const Loops& loops, bool same_start) const {
    std::vector<double> terms = start;
    std::vector<double> out(kQueries);
    loops.log_densities({tiles.data(), weights.data(), count, dims},
                        {.x = x.data(),
                         .stride = dims + 1,
                         .count = kQueries,
                         .start = same_start ? start.data() : terms.data(),
                         .start_stride = same_start ? 0 : count},
                        terms.data(), out.data());
    return out;
  }

  double PlainSum(std::size_t query, bool same_start) const {
    long double sum = 0;
    for (std::size_t k = 0; k < count; ++k) {
      long double term = start[(same_start ? 0 : query * count) + k];
      for (std::size_t d = 0; d < dims; ++d) {
        const double* const tile = tiles.data() + 2 * (k / kLanes * dims + d) * kLanes + k % kLanes;
        const long double z = (static_cast<long double>(x[query * (dims + 1) + d]) - tile[0]) *
                              static_cast<long double>(tile[kLanes]);
        term -= z * z;
      }
      sum += weights[k] * std::exp(term);
    }
    return static_cast<double>(std::log(sum));
  }

  static constexpr std::size_t kQueries = 3;
  std::size_t count;
  std::size_t dims;
  std::vector<double> tiles;
  std::vector<double> weights;
  std::vector<double> start;
  std::vector<double> x;
};

TEST(LoopsTest, KernelsOfTpe) {
  for (const std::size_t count : {8, 24, 136, 1000}) {
    for (const std::size_t dims : {0, 1, 3, 8, 9}) {
      for (const double narrowness : {0.1, 1.0, 30.0}) {  // All count; some; very few.
        SCOPED_TRACE(fmt::format("{} kernels, {} dimensions, {}", count, dims, narrowness));
        const Densities densities(count, dims, narrowness);
        for (const bool same_start : {true, false}) {
          const std::vector<double> expected = densities.Sums(*RunnableLoops()[0], same_start);
          for (std::size_t query = 0; query < expected.size(); ++query) {
            const double plain = densities.PlainSum(query, same_start);
            EXPECT_THAT(expected[query], DoubleNear(plain, 1e-14 * (1 + std::abs(plain))));
          }
          for (const Loops* loops : RunnableLoops()) {
            EXPECT_EQ(densities.Sums(*loops, same_start), expected) << loops->isa;
          }
        }
      }
    }
  }
}

TEST(LoopsTest, KernelsThatAllWeighNothingHaveTheDensityZero) {
  const std::vector<double> tiles(2 * kLanes);
  const std::vector<double> weights(kLanes, 1);
  std::vector<double> terms(kLanes, -std::numeric_limits<double>::infinity());
  for (const Loops* loops : RunnableLoops()) {
    double out = 0;
    const double x = 1;
    loops->log_densities(
        {tiles.data(), weights.data(), kLanes, 1},
        {.x = &x, .stride = 1, .count = 1, .start = terms.data(), .start_stride = 0}, terms.data(),
        &out);
    EXPECT_EQ(out, -std::numeric_limits<double>::infinity()) << loops->isa;
  }
}

TEST(LoopsTest, Dot) {
  Stream random(2, 0, 0);
  for (std::size_t count = 0; count < 100; ++count) {
    const std::vector<double> a = Numbers(random, count);
    const std::vector<double> b = Numbers(random, count);
    const double expected = RunnableLoops()[0]->dot(a.data(), b.data(), count);
    long double plain = 0;
    for (std::size_t k = 0; k < count; ++k) plain += static_cast<long double>(a[k]) * b[k];
    EXPECT_THAT(expected, DoubleNear(static_cast<double>(plain), 1e-12));
    for (const Loops* loops : RunnableLoops()) {
      EXPECT_EQ(loops->dot(a.data(), b.data(), count), expected) << loops->isa << ' ' << count;
    }
  }
}

TEST(LoopsTest, Matern) {
  Stream random(3, 0, 0);
  const std::size_t dims = 3;
  const std::vector<double> weights = {0.5, 1e3,
                                       0.2};  // Far apart in the second dimension: exp(-2000).
  const std::vector<double> is_category = {0, 0, 1};
  const MaternKernel kernel = {weights.data(), is_category.data(), dims, 1.7};
  std::vector<double> block = Numbers(random, dims * kBlock);
  const std::vector<double> x = {0.1, block[kBlock], 2};
  for (std::size_t p = 0; p < kBlock; ++p) {
    if (p < 8) block[kBlock + p] = x[1] + 0.01 * static_cast<double>(p);
    block[2 * kBlock + p] = static_cast<double>(p % 3);
  }
  std::vector<double> expected(kBlock);
  RunnableLoops()[0]->matern(kernel, x.data(), block.data(), expected.data());
  for (std::size_t p = 0; p < kBlock; ++p) {
    const double other = p % 3 == 2 ? 0 : 1;
    const double r =
        std::sqrt(5 * (weights[0] * std::pow(x[0] - block[p], 2) +
                       weights[1] * std::pow(x[1] - block[kBlock + p], 2) + weights[2] * other));
    EXPECT_THAT(expected[p], DoubleNear(1.7 * (1 + r + r * r / 3) * std::exp(-r), 1e-14)) << p;
  }
  for (const Loops* loops : RunnableLoops()) {
    std::vector<double> out(kBlock);
    loops->matern(kernel, x.data(), block.data(), out.data());
    EXPECT_EQ(out, expected) << loops->isa;
  }
}

TEST(LoopsTest, SquaresOfATriangle) {
  Stream random(4, 0, 0);
  for (std::size_t size = 1; size < 20; ++size) {
    std::vector<double> rows = Numbers(random, size * size);
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t k = i + 1; k < size; ++k) rows[i * size + k] = 0;
    }
    const std::vector<double> block = Numbers(random, size * kBlock);
    const std::vector<double> before = Numbers(random, kBlock);
    std::vector<double> expected = before;
    RunnableLoops()[0]->add_squares(rows.data(), size, block.data(), expected.data());
    for (std::size_t p = 0; p < kBlock; ++p) {
      long double plain = before[p];
      for (std::size_t i = 0; i < size; ++i) {
        long double product = 0;
        for (std::size_t k = 0; k <= i; ++k) {
          product += static_cast<long double>(rows[i * size + k]) * block[k * kBlock + p];
        }
        plain += product * product;
      }
      EXPECT_THAT(expected[p], DoubleNear(static_cast<double>(plain), 1e-10)) << size;
    }
    for (const Loops* loops : RunnableLoops()) {
      std::vector<double> sums = before;
      loops->add_squares(rows.data(), size, block.data(), sums.data());
      EXPECT_EQ(sums, expected) << loops->isa << ' ' << size;
    }
  }
}

}  // namespace
}  // namespace orca::tune
