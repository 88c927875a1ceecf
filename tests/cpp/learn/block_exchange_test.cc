#include "orca/learn/block_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "orca/core/error.h"
#include "orca/data/shared_block.h"
#include "testing/ranks.h"
#include "testing/seed.h"

namespace orca::learn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RunRanks;

// A group that somebody else owns.
std::shared_ptr<comm::Communicator> Borrow(comm::Communicator& group) {
  return {&group, [](comm::Communicator*) {}};
}

using Gradient = std::vector<std::byte>;  // of one tensor; empty: none

/// What the blocks of one step have.
struct Step {
  std::vector<FlatTensor> tensors;
  std::vector<StepPart> parts;
  std::vector<std::vector<Gradient>> gradients;  // by block and tensor
  LossKind kind = LossKind::kMean;
};

template <typename T>
std::span<T> As(Gradient& gradient) {
  return {reinterpret_cast<T*>(gradient.data()), gradient.size() / sizeof(T)};
}

Step MakeStep(std::mt19937_64& random, int blocks) {
  const auto draw = [&](int from, int to) {
    return std::uniform_int_distribution(from, to)(random);
  };
  std::normal_distribution<double> values(0.0, 1.0);
  Step made;
  made.kind = draw(0, 1) == 0 ? LossKind::kMean : LossKind::kSum;
  const int tensors = draw(1, 5);
  for (int t = 0; t < tensors; ++t)
    made.tensors.push_back({.name = std::to_string(t),
                            .dtype = draw(0, 1) == 0 ? DType::kFloat32 : DType::kFloat64,
                            // Some are longer than what is reduced at once.
                            .count = static_cast<std::uint64_t>(draw(1, t == 0 ? 9000 : 300)),
                            .group = t % 2});
  for (int block = 0; block < blocks; ++block) {
    const bool is_empty = draw(0, 3) == 0;
    made.parts.push_back({.weight = is_empty ? 0.0 : draw(1, 50) / 4.0,
                          .loss = is_empty ? std::nan("") : values(random),
                          .rows = static_cast<std::uint64_t>(draw(0, 7))});
    auto& mine = made.gradients.emplace_back();
    for (const FlatTensor& tensor : made.tensors) {
      auto& gradient = mine.emplace_back();
      if (draw(0, 5) == 0) continue;
      gradient.resize(tensor.count * SizeOf(tensor.dtype));
      // Zeros of both signs are among them.
      const auto value = [&] { return draw(0, 9) == 0 ? -0.0 : values(random); };
      if (tensor.dtype == DType::kFloat32) {
        for (float& each : As<float>(gradient)) each = static_cast<float>(value());
      } else {
        for (double& each : As<double>(gradient)) each = value();
      }
    }
  }
  return made;
}

std::vector<const void*> PointersOf(const std::vector<Gradient>& gradients) {
  std::vector<const void*> pointers;
  for (const Gradient& gradient : gradients)
    pointers.push_back(gradient.empty() ? nullptr : gradient.data());
  return pointers;
}

/// What a worker sees of a step.
struct Seen {
  StepSum sum;
  Gradient bank;
  double squares = 0.0;
  bool operator==(const Seen& other) const {
    const auto same = [](double a, double b) {
      return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
    };
    return same(sum.weight, other.sum.weight) && same(sum.loss, other.sum.loss) &&
           sum.rows == other.sum.rows && sum.used == other.sum.used && bank == other.bank &&
           same(squares, other.squares);
  }
};

using Limits = std::optional<std::pair<double, double>>;

// All steps, one after the other, with so many workers; what each of them saw.
std::vector<std::vector<Seen>> SeenBy(const std::vector<Step>& steps, int world,
                                      const Limits& limits) {
  const FlatLayout layout(steps[0].tensors);
  const int blocks = static_cast<int>(steps[0].parts.size());
  const auto memory = data::SharedBlock::Create(data::ShardShelf::Create(),
                                                BlockExchange::MemorySize(layout, blocks, world));
  std::vector<std::vector<Seen>> seen(static_cast<std::size_t>(world));
  RunRanks(world, testing::SharedMemoryLayout(), [&](comm::Communicator& group) {
    const auto mine = data::SharedBlock::Open(memory->hold());
    BlockExchange exchange(Borrow(group), layout, mine->bytes(), blocks);
    for (const Step& step : steps) {
      for (int block = exchange.own().begin; block < exchange.own().end; ++block) {
        const auto b = static_cast<std::size_t>(block);
        // What has no rows may be left out.
        if (step.parts[b].weight == 0.0 && step.parts[b].rows == 0) continue;
        exchange.Add(block, step.parts[b], PointersOf(step.gradients[b]), step.kind);
      }
      Seen& found = seen[static_cast<std::size_t>(group.rank())].emplace_back();
      found.sum = exchange.Meet(step.kind);
      exchange.Reduce();
      found.squares = exchange.Squares(limits);
      const auto bank = exchange.bank();
      found.bank.assign(bank.begin(), bank.end());
      exchange.Leave();
    }
  });
  return seen;
}

// The sum of the blocks from `begin` on, by the tree that the header describes.
template <typename T>
std::optional<std::vector<T>> TreeSum(Step& step, std::size_t tensor, std::size_t begin,
                                      std::size_t size) {
  if (begin >= step.parts.size()) return std::nullopt;
  if (size == 1) {
    if (step.parts[begin].weight == 0.0) return std::nullopt;
    std::vector<T> sum(step.tensors[tensor].count, T{0});
    const auto factor =
        static_cast<T>(step.kind == LossKind::kSum ? 1.0 : step.parts[begin].weight);
    Gradient& gradient = step.gradients[begin][tensor];
    if (!gradient.empty())
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = As<T>(gradient)[i] * factor;
    return sum;
  }
  auto left = TreeSum<T>(step, tensor, begin, size / 2);
  auto right = TreeSum<T>(step, tensor, begin + size / 2, size / 2);
  if (!left) return right;
  if (right)
    for (std::size_t i = 0; i < left->size(); ++i) (*left)[i] = (*left)[i] + (*right)[i];
  return left;
}

template <typename T>
void ExpectTreeSum(Step& step, std::size_t tensor, const Seen& seen) {
  const FlatLayout layout(step.tensors);
  const auto sum =
      TreeSum<T>(step, tensor, 0, std::bit_ceil(static_cast<std::size_t>(step.parts.size())));
  const auto factor = static_cast<T>(
      step.kind == LossKind::kSum || seen.sum.weight == 0.0 ? 1.0 : 1.0 / seen.sum.weight);
  std::vector<T> expected(step.tensors[tensor].count, T{0});
  if (sum)
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = (*sum)[i] * factor;
  EXPECT_EQ(std::memcmp(expected.data(), seen.bank.data() + layout.offset(tensor),
                        expected.size() * sizeof(T)),
            0)
      << "tensor " << tensor;
}

TEST(BlockExchangeTest, TheBitsAreThoseOfOneTreeForAnyNumberOfWorkers) {
  std::mt19937_64 random(testing::TestSeed());
  for (const int blocks : {1, 2, 3, 5, 7, 8, 12, 13, 16}) {
    std::vector<Step> steps{MakeStep(random, blocks)};
    for (int i = 0; i < 2; ++i) {
      Step next = MakeStep(random, blocks);
      next.tensors = steps[0].tensors;
      next.gradients = steps[0].gradients;
      std::ranges::shuffle(next.gradients, random);
      steps.push_back(std::move(next));
    }
    const Limits limits = blocks % 2 == 0 ? Limits(std::pair(-0.5, 0.25)) : std::nullopt;
    const auto alone = SeenBy(steps, 1, limits);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      for (std::size_t t = 0; t < steps[i].tensors.size(); ++t) {
        if (steps[i].tensors[t].dtype == DType::kFloat32) {
          ExpectTreeSum<float>(steps[i], t, alone[0][i]);
        } else {
          ExpectTreeSum<double>(steps[i], t, alone[0][i]);
        }
      }
    }
    for (int world = 2; world <= std::min(blocks, 6); ++world)
      for (const auto& seen : SeenBy(steps, world, limits))
        for (std::size_t i = 0; i < steps.size(); ++i)
          EXPECT_TRUE(seen[i] == alone[0][i])
              << blocks << " blocks, " << world << " workers, step " << i;
  }
}

TEST(BlockExchangeTest, EachWorkerHasNeighboursAndTheFirstHaveOneMore) {
  const auto of = [](int blocks, int world) {
    std::vector<int> borders{0};
    for (int rank = 0; rank < world; ++rank) {
      EXPECT_EQ(BlockExchange::BlocksOf(blocks, rank, world).begin, borders.back());
      borders.push_back(BlockExchange::BlocksOf(blocks, rank, world).end);
    }
    return borders;
  };
  EXPECT_THAT(of(12, 1), ElementsAre(0, 12));
  EXPECT_THAT(of(12, 5), ElementsAre(0, 3, 6, 8, 10, 12));
  EXPECT_THAT(of(3, 3), ElementsAre(0, 1, 2, 3));
}

TEST(BlockExchangeTest, MemoryGrowsWithTheHeightOfTheTree) {
  const FlatLayout layout({{.name = "w", .dtype = DType::kFloat32, .count = 1 << 20}});
  for (int blocks = 1; blocks <= 256; ++blocks) {
    const auto height = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(blocks)));
    for (int world = 1; world <= std::min(blocks, 9); ++world) {
      const std::size_t banks = 1 + static_cast<std::size_t>(world) * 2 * height;
      EXPECT_LE(BlockExchange::MemorySize(layout, blocks, world),
                banks * layout.size() + (1 << 17));
    }
  }
  // One worker, or workers that have whole nodes, need no more than a counter of the blocks.
  EXPECT_LT(BlockExchange::MemorySize(layout, 12, 1), 5 * layout.size());
}

TEST(BlockExchangeTest, SaysWhoseLossOrGradientIsNotFinite) {
  const std::vector<FlatTensor> tensors{{.name = "a", .dtype = DType::kFloat32, .count = 3},
                                        {.name = "b", .dtype = DType::kFloat32, .count = 3}};
  const FlatLayout layout(tensors);
  const auto memory = data::SharedBlock::Create(data::ShardShelf::Create(),
                                                BlockExchange::MemorySize(layout, 5, 2));
  RunRanks(2, testing::SharedMemoryLayout(), [&](comm::Communicator& group) {
    const auto mine = data::SharedBlock::Open(memory->hold());
    BlockExchange exchange(Borrow(group), layout, mine->bytes(), 5);
    const std::vector<float> good{1, 2, 3};
    const std::vector<float> bad{1, std::numeric_limits<float>::infinity(), 3};
    for (int block = exchange.own().begin; block < exchange.own().end; ++block) {
      const std::vector<const void*> gradients{good.data(), block == 4 ? bad.data() : good.data()};
      const double loss = block == 1 ? std::nan("") : 1.0;
      const bool fine = exchange.Add(block, {.weight = 1.0, .loss = loss, .rows = 1}, gradients);
      EXPECT_EQ(fine, block != 1 && block != 4);
    }
    const StepSum sum = exchange.Meet();
    EXPECT_EQ(sum.bad_loss, 0);
    EXPECT_EQ(sum.bad_gradient, 1);
    EXPECT_EQ(sum.bad_tensor, 1);
    exchange.Leave();
    const StepSum nothing = exchange.Meet();  // What was bad is forgotten, and nobody has rows.
    EXPECT_EQ(nothing.weight, 0.0);
    EXPECT_EQ(nothing.bad_loss, -1);
    EXPECT_EQ(nothing.bad_gradient, -1);
    exchange.Reduce();
    EXPECT_EQ(exchange.Squares(std::nullopt), 0.0);
    exchange.Leave();
  });
}

TEST(BlockExchangeTest, NamesWhatDoesNotFit) {
  const FlatLayout layout({{.name = "w", .dtype = DType::kFloat32, .count = 4}});
  const auto message = [](const auto& act) {
    try {
      act();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message([&] { BlockExchange::MemorySize(layout, 2, 3); }),
              HasSubstr("3 workers for 2 blocks"));
  RunRanks(1, testing::SharedMemoryLayout(), [&](comm::Communicator& group) {
    std::vector<std::byte> small(64);
    EXPECT_THAT(message([&] { BlockExchange(Borrow(group), layout, small, 4); }),
                HasSubstr("the memory has 64 bytes"));
    const auto memory = data::SharedBlock::Create(data::ShardShelf::Create(),
                                                  BlockExchange::MemorySize(layout, 4, 1));
    BlockExchange exchange(Borrow(group), layout, memory->bytes(), 4);
    const std::vector<float> gradient(4);
    const std::vector<const void*> pointers{gradient.data()};
    exchange.Add(1, {.weight = 1.0, .rows = 1}, pointers);
    EXPECT_THAT(message([&] { exchange.Add(1, {.weight = 1.0}, pointers); }),
                HasSubstr("block 1 was added; rank 0 has those from 2 to 3"));
    EXPECT_THAT(message([&] { exchange.Add(4, {.weight = 1.0}, pointers); }), HasSubstr("block 4"));
    EXPECT_THAT(message([&] { exchange.Add(2, {.weight = 1.0}, {}); }),
                HasSubstr("0 gradients for 1 tensors"));
  });
}

}  // namespace
}  // namespace orca::learn
