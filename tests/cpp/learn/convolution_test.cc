// Convolutions and pooling against sums in double, on every instruction set, for shapes drawn at
// random.
#include "orca/learn/convolution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "learn/convolution_table.h"
#include "orca/comm/kernels.h"
#include "orca/core/error.h"
#include "testing/seed.h"

namespace orca::learn {
namespace {

using ::testing::HasSubstr;
using Random = std::mt19937_64;
using Index = std::int64_t;
using Floats = std::vector<float>;

Floats Drawn(Random& random, Index count) {
  std::uniform_real_distribution<float> law(-1, 1);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = law(random);
  return values;
}

/// All that a convolution has to do with.
struct Case {
  explicit Case(const Convolution& given, Random& random)
      : shape(given),
        input(Drawn(random, shape.images * shape.in_channels * shape.height * shape.width)),
        weights(Drawn(random, shape.out_channels * Kernel())),
        bias(Drawn(random, shape.out_channels)),
        gradient(Drawn(random, shape.images * shape.out_channels * Plane())) {}

  Index Kernel() const { return shape.in_channels * shape.kernel_height * shape.kernel_width; }
  Index Plane() const { return shape.out_height() * shape.out_width(); }

  /// Calls `meet(input, weight, output)` with the indices of every product.
  template <typename Meet>
  void Products(Meet meet) const {
    for (Index n = 0; n < shape.images; ++n)
      for (Index o = 0; o < shape.out_channels; ++o)
        for (Index i = 0; i < shape.in_channels; ++i)
          for (Index y = 0; y < shape.out_height(); ++y)
            for (Index x = 0; x < shape.out_width(); ++x)
              for (Index ky = 0; ky < shape.kernel_height; ++ky)
                for (Index kx = 0; kx < shape.kernel_width; ++kx) {
                  const Index row = y + ky - shape.pad_height;
                  const Index column = x + kx - shape.pad_width;
                  if (row < 0 || row >= shape.height || column < 0 || column >= shape.width)
                    continue;
                  meet(((n * shape.in_channels + i) * shape.height + row) * shape.width + column,
                       ((o * shape.in_channels + i) * shape.kernel_height + ky) *
                               shape.kernel_width +
                           kx,
                       ((n * shape.out_channels + o) * shape.out_height() + y) * shape.out_width() +
                           x);
                }
  }

  Convolution shape;
  Floats input, weights, bias, gradient;
};

/// `found` is as near to `sums` as so many additions of numbers below 1 in float32 are.
void ExpectNear(const Floats& found, const std::vector<double>& sums, double terms,
                const std::string& what) {
  ASSERT_EQ(found.size(), sums.size()) << what;
  const double most = 1e-6 * std::sqrt(terms) + 2e-7 * terms;
  for (std::size_t i = 0; i < sums.size(); ++i)
    ASSERT_NEAR(found[i], sums[i], most) << what << ", element " << i;
}

void ExpectRight(const Case& one) {
  const Convolution& shape = one.shape;
  const std::string what = ::testing::PrintToString(std::vector<Index>{
      shape.images, shape.in_channels, shape.height, shape.width, shape.out_channels,
      shape.kernel_height, shape.kernel_width, shape.pad_height, shape.pad_width});
  std::vector<double> output(one.gradient.size()), of_input(one.input.size()),
      of_weights(one.weights.size()), of_bias(one.bias.size());
  for (std::size_t i = 0; i < output.size(); ++i) {
    const std::size_t channel = i / one.Plane() % shape.out_channels;
    output[i] = one.bias[channel];
    of_bias[channel] += one.gradient[i];
  }
  one.Products([&](Index in, Index weight, Index out) {
    output[out] += static_cast<double>(one.input[in]) * one.weights[weight];
    of_input[in] += static_cast<double>(one.gradient[out]) * one.weights[weight];
    of_weights[weight] += static_cast<double>(one.gradient[out]) * one.input[in];
  });
  Floats found(output.size());
  Convolve(shape, one.input.data(), one.weights.data(), one.bias.data(), found.data());
  ExpectNear(found, output, static_cast<double>(one.Kernel()), what + " output");

  found.assign(one.input.size(), 7);  // What was there before does not matter.
  ConvolutionInputGradient(shape, one.gradient.data(), one.weights.data(), found.data());
  ExpectNear(found, of_input,
             static_cast<double>(shape.out_channels * shape.kernel_height * shape.kernel_width),
             what + " input");

  found.assign(one.weights.size(), 7);
  Floats bias(one.bias.size(), 7);
  ConvolutionWeightGradient(shape, one.input.data(), one.gradient.data(), 0, shape.out_channels,
                            found.data(), bias.data());
  const auto terms = static_cast<double>(shape.images * one.Plane());
  ExpectNear(found, of_weights, terms, what + " weights");
  ExpectNear(bias, of_bias, terms, what + " bias");
}

Convolution DrawnShape(Random& random) {
  const auto draw = [&](Index low, Index high) {
    return std::uniform_int_distribution<Index>(low, high)(random);
  };
  Convolution shape{};
  shape.kernel_height = draw(1, 7), shape.kernel_width = draw(2, 7);
  shape.pad_height = draw(0, shape.kernel_height - 1);
  shape.pad_width = draw(0, shape.kernel_width - 1);
  shape.images = draw(1, 6), shape.in_channels = draw(1, 5), shape.out_channels = draw(1, 30);
  shape.height = draw(std::max<Index>(1, shape.kernel_height - 2 * shape.pad_height), 14);
  shape.width = draw(std::max<Index>(1, shape.kernel_width - 2 * shape.pad_width), 20);
  return shape;
}

TEST(ConvolutionTest, EveryShapeIsWhatDoublesSay) {
  Random random(testing::TestSeed());
  for (int round = 0; round < (testing::kSanitized ? 30 : 150); ++round) {
    ExpectRight(Case(DrawnShape(random), random));
    if (HasFatalFailure()) return;
  }
}

TEST(ConvolutionTest, LeNetsTwoAreWhatDoublesSay) {
  Random random(testing::TestSeed());
  ExpectRight(Case({3, 1, 28, 28, 20, 5, 5, 0, 0}, random));
  ExpectRight(Case({9, 20, 12, 12, 50, 5, 5, 0, 0}, random));
}

TEST(ConvolutionTest, EveryInstructionSetGivesTheSameButForRounding) {
  Random random(testing::TestSeed());
  for (int round = 0; round < 50; ++round) {
    const Convolution shape = DrawnShape(random);
    const ConvolutionLoops loops{shape.in_channels,
                                 4,
                                 shape.kernel_height,
                                 shape.kernel_width,
                                 shape.kernel_height + 2,
                                 shape.kernel_width + 9,
                                 3,
                                 10};
    const Floats image = Drawn(random, loops.in_channels * loops.height * loops.width);
    const Floats weights =
        Drawn(random, 4 * loops.in_channels * loops.kernel_height * loops.kernel_width);
    const Floats bias = Drawn(random, 4);
    Floats first(4 * 30), other(4 * 30);
    ConvolutionsAt(0).forward(loops, 4, image.data(), weights.data(), bias.data(), first.data());
    for (Index isa = 1; isa < RunnableConvolutions(); ++isa) {
      ConvolutionsAt(isa).forward(loops, 4, image.data(), weights.data(), bias.data(),
                                  other.data());
      for (std::size_t i = 0; i < first.size(); ++i)
        ASSERT_NEAR(first[i], other[i], 1e-4) << ConvolutionsAt(isa).isa;
    }
  }
}

TEST(ConvolutionTest, NoBitDependsOnHowTheWorkIsCut) {
  Random random(testing::TestSeed());
  for (int round = 0; round < 30; ++round) {
    const Case one(DrawnShape(random), random);
    const Convolution& shape = one.shape;
    Floats whole(one.gradient.size()), parts(one.gradient.size());
    Floats of_whole(one.input.size()), of_parts(one.input.size());
    Floats weights(one.weights.size()), weight_parts(one.weights.size());
    Convolve(shape, one.input.data(), one.weights.data(), nullptr, whole.data());
    ConvolutionInputGradient(shape, one.gradient.data(), one.weights.data(), of_whole.data());
    Convolution single = shape;
    single.images = 1;
    const Index in = shape.in_channels * shape.height * shape.width;
    const Index out = shape.out_channels * one.Plane();
    for (Index n = 0; n < shape.images; ++n) {
      Convolve(single, one.input.data() + n * in, one.weights.data(), nullptr,
               parts.data() + n * out);
      ConvolutionInputGradient(single, one.gradient.data() + n * out, one.weights.data(),
                               of_parts.data() + n * in);
    }
    EXPECT_EQ(whole, parts);
    EXPECT_EQ(of_whole, of_parts);
    ConvolutionWeightGradient(shape, one.input.data(), one.gradient.data(), 0, shape.out_channels,
                              weights.data(), nullptr);
    const Index cut = std::uniform_int_distribution<Index>(0, shape.out_channels)(random);
    for (const auto& [begin, end] : {std::pair<Index, Index>{0, cut}, {cut, shape.out_channels}})
      ConvolutionWeightGradient(shape, one.input.data(), one.gradient.data(), begin, end,
                                weight_parts.data(), nullptr);
    EXPECT_EQ(weights, weight_parts);
  }
}

TEST(ConvolutionTest, ItPaysWhereChannelsWouldBeFilledUp) {
  if (RunnableConvolutions() == 1) GTEST_SKIP() << "this machine has no AVX2";
  EXPECT_TRUE(ConvolutionPays({32, 1, 28, 28, 20, 5, 5, 0, 0}));
  EXPECT_FALSE(ConvolutionPays({32, 64, 16, 16, 64, 3, 3, 1, 1}));  // Nothing to gain.
  EXPECT_FALSE(ConvolutionPays({32, 1, 28, 28, 20, 1, 1, 0, 0}));   // Not ours.
  EXPECT_FALSE(ConvolutionPays({32, 1, 28, 28, 20, 9, 9, 0, 0}));
  EXPECT_FALSE(ConvolutionPays({32, 1, 500, 500, 20, 5, 5, 0, 0}));  // Leaves the caches.
  EXPECT_FALSE(ConvolutionPays({32, 1, 3, 3, 20, 5, 5, 0, 0}));      // Larger than the image.
}

TEST(ConvolutionTest, WhatItCannotTakeIsNamed) {
  float none[1] = {};
  try {
    Convolve({1, 1, 28, 28, 20, 9, 9, 0, 0}, none, none, nullptr, none);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("20 kernels of 9 x 9"));
  }
  EXPECT_THROW(
      ConvolutionWeightGradient({1, 1, 8, 8, 4, 3, 3, 0, 0}, none, none, 2, 5, none, nullptr),
      Error);
  EXPECT_THROW(MaxPool2x2(1, 1 << 16, 1 << 16, none, none, nullptr), Error);
}

TEST(MaxPoolTest, EveryPlaneIsWhatALoopSays) {
  Random random(testing::TestSeed());
  for (int round = 0; round < 300; ++round) {
    const Index planes = 1 + static_cast<Index>(random() % 3);
    const Index height = static_cast<Index>(random() % 9);
    const Index width = static_cast<Index>(random() % 45);
    Floats input = Drawn(random, planes * height * width);
    for (float& value : input) {  // Equal ones, NaN and infinity are what is easily wrong.
      const auto kind = random() % 20;
      if (kind < 8) value = static_cast<float>(kind % 3);
      if (kind == 8) value = std::numeric_limits<float>::quiet_NaN();
      if (kind == 9) value = -std::numeric_limits<float>::infinity();
    }
    const Index rows = height / 2;
    const Index columns = width / 2;
    Floats output(static_cast<std::size_t>(planes * rows * columns));
    std::vector<Index> indices(output.size());
    for (Index isa = 0; isa < RunnableConvolutions(); ++isa) {
      ConvolutionsAt(isa).max_pool(planes, height, width, input.data(), output.data(),
                                   indices.data());
      for (std::size_t i = 0; i < output.size(); ++i) {
        const Index plane = static_cast<Index>(i) / (rows * columns);
        const Index first = static_cast<Index>(i) / columns % rows * 2 * width +
                            static_cast<Index>(i) % columns * 2;
        Index best = first;
        float value = -std::numeric_limits<float>::infinity();
        for (const Index at : {first, first + 1, first + width, first + width + 1}) {
          const float other = input[plane * height * width + at];
          if (other > value || std::isnan(other)) value = other, best = at;
        }
        ASSERT_EQ(indices[i], best) << ConvolutionsAt(isa).isa;
        ASSERT_TRUE(output[i] == value || (std::isnan(output[i]) && std::isnan(value)));
      }
    }
  }
}

}  // namespace
}  // namespace orca::learn
