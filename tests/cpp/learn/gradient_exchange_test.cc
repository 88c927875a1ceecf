#include "orca/learn/gradient_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "orca/core/error.h"
#include "orca/data/shared_block.h"
#include "testing/ranks.h"
#include "testing/seed.h"

namespace orca::learn {
namespace {

using testing::RunRanks;

// A group that somebody else owns.
std::shared_ptr<comm::Communicator> Borrow(comm::Communicator& group) {
  return {&group, [](comm::Communicator*) {}};
}

/// What every worker of one step has.
struct Case {
  std::vector<FlatTensor> tensors;
  std::vector<std::vector<std::vector<double>>> gradients;  // by worker and tensor; empty: none
  std::vector<double> weights;
  std::vector<double> losses;
};

Case MakeCase(std::mt19937_64& random, int world) {
  Case made;
  std::uniform_int_distribution<std::uint64_t> counts(1, 200);
  std::uniform_real_distribution<double> values(-1.0, 1.0);
  const int tensors = std::uniform_int_distribution(1, 6)(random);
  for (int t = 0; t < tensors; ++t)
    made.tensors.push_back({.name = std::to_string(t),
                            .dtype = DType::kFloat64,
                            .count = counts(random),
                            .group = t % 2});
  for (int rank = 0; rank < world; ++rank) {
    made.weights.push_back(static_cast<double>(std::uniform_int_distribution(0, 3)(random)));
    made.losses.push_back(values(random));
    auto& mine = made.gradients.emplace_back();
    for (const FlatTensor& tensor : made.tensors) {
      auto& gradient = mine.emplace_back();
      if (std::uniform_int_distribution(0, 4)(random) == 0) continue;
      gradient.resize(tensor.count);
      for (double& value : gradient) value = values(random);
    }
  }
  return made;
}

// The gradient of all workers' rows together, as one process would have it.
std::vector<double> Expected(const Case& made, std::size_t tensor, LossKind kind) {
  const double total = std::accumulate(made.weights.begin(), made.weights.end(), 0.0);
  std::vector<double> sum(made.tensors[tensor].count, 0.0);
  for (std::size_t rank = 0; rank < made.weights.size(); ++rank) {
    if (made.weights[rank] == 0.0 || made.gradients[rank][tensor].empty()) continue;
    const double factor = kind == LossKind::kSum ? 1.0 : made.weights[rank] / total;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += factor * made.gradients[rank][tensor][i];
  }
  return sum;
}

std::vector<const void*> PointersOf(const Case& made, int rank) {
  std::vector<const void*> pointers;
  for (const auto& gradient : made.gradients[static_cast<std::size_t>(rank)])
    pointers.push_back(gradient.empty() ? nullptr : gradient.data());
  return pointers;
}

std::shared_ptr<data::SharedBlock> NewBlock(std::size_t bytes) {
  return data::SharedBlock::Create(data::ShardShelf::Create(), bytes);
}

struct Place {
  const char* name;
  bool shared;
};

class GradientExchangeTest : public ::testing::TestWithParam<Place> {
 protected:
  // Memory for the block of one worker, or of all.
  std::shared_ptr<data::SharedBlock> MakeBlock(const FlatLayout& layout, int world) const {
    return NewBlock(GradientExchange::BlockSize(layout, GetParam().shared ? world : 1));
  }
  // This worker's own, or its mapping of the one that all share.
  std::shared_ptr<data::SharedBlock> Mine(const std::shared_ptr<data::SharedBlock>& shared,
                                          const FlatLayout& layout) const {
    return GetParam().shared ? data::SharedBlock::Open(shared->hold()) : MakeBlock(layout, 1);
  }
  testing::Layout ranks() const {
    return GetParam().shared ? testing::SharedMemoryLayout() : testing::HostsLayout(1);
  }
};

TEST_P(GradientExchangeTest, EveryWorkerGetsTheGradientOfAllRowsTogether) {
  std::mt19937_64 random(testing::TestSeed());
  for (int world = 1; world <= 5; ++world) {
    std::vector<Case> cases;
    for (int i = 0; i < 8; ++i) cases.push_back(MakeCase(random, world));
    for (const LossKind kind : {LossKind::kMean, LossKind::kSum}) {
      for (const Case& made : cases) {
        const FlatLayout layout(made.tensors);
        const auto shared = MakeBlock(layout, world);
        RunRanks(world, ranks(), [&](comm::Communicator& group) {
          const auto block = Mine(shared, layout);
          GradientExchange exchange(Borrow(group), layout, block->bytes(), GetParam().shared);
          const auto rank = static_cast<std::size_t>(group.rank());
          for (int step = 0; step < 2; ++step) {
            exchange.Collect(PointersOf(made, group.rank()));
            const StepSum sum = exchange.Meet(
                {.weight = made.weights[rank], .loss = made.losses[rank], .rows = rank}, kind);
            EXPECT_EQ(sum.rows, static_cast<std::uint64_t>(world * (world - 1) / 2));
            exchange.ReduceAll();
            std::vector<std::vector<double>> all;
            std::vector<void*> pointers;
            for (const FlatTensor& tensor : made.tensors)
              pointers.push_back(all.emplace_back(tensor.count).data());
            exchange.Spread(pointers);
            exchange.Leave();
            for (std::size_t t = 0; t < all.size(); ++t)
              EXPECT_THAT(all[t], ::testing::Pointwise(::testing::DoubleNear(1e-14),
                                                       Expected(made, t, kind)));
          }
        });
      }
    }
  }
}

TEST_P(GradientExchangeTest, TheLossIsTheMeanAndSaysWhoseIsNotFinite) {
  const FlatLayout layout({{.name = "w", .count = 4}});
  const auto shared = MakeBlock(layout, 3);
  const float bad = std::numeric_limits<float>::infinity();
  RunRanks(3, ranks(), [&](comm::Communicator& group) {
    const auto block = Mine(shared, layout);
    GradientExchange exchange(Borrow(group), layout, block->bytes(), GetParam().shared);
    const int rank = group.rank();
    std::vector<float> gradient{1, 2, rank == 2 ? bad : 3, 4};
    const void* const pointer = gradient.data();
    exchange.Collect({&pointer, 1});
    StepSum sum = exchange.Meet({.weight = rank + 1.0, .loss = rank * 6.0});
    EXPECT_DOUBLE_EQ(sum.weight, 6.0);
    EXPECT_DOUBLE_EQ(sum.loss, (2 * 6.0 + 3 * 12.0) / 6.0);
    EXPECT_EQ(sum.bad_loss, -1);
    EXPECT_EQ(sum.bad_gradient, 2);
    EXPECT_EQ(sum.bad_tensor, 0);
    exchange.Leave();
    // A worker without a weight does not count, whatever it holds.
    sum = exchange.Meet({.weight = rank == 2 ? 0.0 : 1.0,
                         .loss = rank >= 1 ? std::nan("") : 1.0,
                         .leaves = rank == 2});
    EXPECT_EQ(sum.bad_loss, 1);
    EXPECT_EQ(sum.bad_gradient, -1);
    EXPECT_FALSE(sum.all_leave);
    exchange.Leave();
    EXPECT_TRUE(exchange.Meet({.leaves = true}).all_leave);
  });
}

TEST_P(GradientExchangeTest, WhatNobodyUsedIsSaid) {
  const FlatLayout layout({{.name = "a", .count = 4}, {.name = "b", .count = 4}});
  const auto shared = MakeBlock(layout, 2);
  RunRanks(2, ranks(), [&](comm::Communicator& group) {
    const auto block = Mine(shared, layout);
    GradientExchange exchange(Borrow(group), layout, block->bytes(), GetParam().shared);
    const std::vector<float> gradient(4, 1.0F);
    const std::vector<const void*> some{group.rank() == 0 ? gradient.data() : nullptr, nullptr};
    exchange.Collect(some);
    EXPECT_EQ(exchange.Meet({.weight = 1.0}).used, (std::vector<bool>{true, false}));
  });
}

INSTANTIATE_TEST_SUITE_P(Places, GradientExchangeTest,
                         ::testing::Values(Place{"OneMachine", true}, Place{"Machines", false}),
                         [](const auto& place) { return place.param.name; });

TEST(GradientExchangeSharesTest, AWorkersShareOfARunIsReducedInItsOwnBank) {
  const FlatLayout layout({{.name = "a", .count = 40}, {.name = "b", .count = 25}});
  const auto shared = NewBlock(GradientExchange::BlockSize(layout, 2));
  RunRanks(2, testing::SharedMemoryLayout(), [&](comm::Communicator& group) {
    const auto block = data::SharedBlock::Open(shared->hold());
    GradientExchange exchange(Borrow(group), layout, block->bytes(), true);
    const std::vector<float> a(40, static_cast<float>(1 + group.rank()));
    const std::vector<float> b(25, static_cast<float>(10 * (1 + group.rank())));
    const std::vector<const void*> pointers{a.data(), b.data()};
    exchange.Collect(pointers);
    exchange.Meet({.weight = 1.0});
    const auto runs = layout.Runs(std::vector<int>{0, 0});
    exchange.ReduceShare(runs);
    const auto share = FlatLayout::Share(runs[0].range, group.rank(), 2);
    const auto* const numbers = reinterpret_cast<const float*>(exchange.bank().data());
    for (std::size_t i = share.begin / 4; i < share.end / 4; ++i) {
      const std::size_t second = layout.offset(1) / 4;
      const float expected = i < 40 ? 1.5F : i < second || i >= second + 25 ? 0.0F : 15.0F;
      EXPECT_EQ(numbers[i], expected) << i;
    }
    exchange.Leave();
  });
}

TEST(GradientExchangeSharesTest, ABlockThatIsTooSmallAndWholeNumbersAreRefused) {
  RunRanks(1, testing::SharedMemoryLayout(), [&](comm::Communicator& group) {
    std::vector<std::byte> small(8);
    EXPECT_THROW(
        GradientExchange(Borrow(group), FlatLayout({{.name = "a", .count = 4}}), small, true),
        Error);
    std::vector<std::byte> large(4096);
    EXPECT_THROW(GradientExchange(Borrow(group),
                                  FlatLayout({{.name = "a", .dtype = DType::kInt32, .count = 4}}),
                                  large, true),
                 Error);
  });
}

}  // namespace
}  // namespace orca::learn
