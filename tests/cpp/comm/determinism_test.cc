// The same bits on every rank and in every run; NaN; bfloat16 on the wire.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>

#include "testing/cases.h"
#include "testing/seed.h"

namespace orca::comm {
namespace {

using testing::Layout;

std::vector<float> RandomFloats(std::size_t count, int rank) {
  std::mt19937 random(static_cast<std::uint32_t>(rank) + 17);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// The results of all ranks of one run.
std::vector<std::vector<float>> AllReduceOnce(int world, const Layout& layout, std::size_t count,
                                              ReduceOp op, bool wire_bf16) {
  std::vector<std::vector<float>> results(static_cast<std::size_t>(world));
  testing::RunRanks(
      world, layout, [&](CommOptions& options) { options.wire_bf16 = wire_bf16; },
      [&](Communicator& comm) {
        std::vector<float> data = RandomFloats(count, comm.rank());
        comm.AllReduce(AsBytes(data), DType::kFloat32, op);
        results[static_cast<std::size_t>(comm.rank())] = std::move(data);
      });
  return results;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class DeterminismTest : public ::testing::TestWithParam<Layout> {};

TEST_P(DeterminismTest, EveryRankAndEveryRunGetsTheSameBits) {
  for (const int world : {2, 5, 7}) {
    for (const std::size_t count : {std::size_t{3}, std::size_t{1500}, std::size_t{300'001}}) {
      for (const bool wire_bf16 : {false, true}) {
        const auto first = AllReduceOnce(world, GetParam(), count, ReduceOp::kAverage, wire_bf16);
        const auto second = AllReduceOnce(world, GetParam(), count, ReduceOp::kAverage, wire_bf16);
        for (int rank = 0; rank < world; ++rank) {
          const auto r = static_cast<std::size_t>(rank);
          EXPECT_TRUE(SameBits(first[r], first[0]))
              << "rank " << rank << " of " << world << ", " << count;
          EXPECT_TRUE(SameBits(second[r], first[0]))
              << "second run, rank " << rank << " of " << world;
        }
      }
    }
  }
}

TEST_P(DeterminismTest, BFloat16OnTheWireCostsNoMoreThanItsPrecision) {
  constexpr std::size_t kCount = 100'003;
  constexpr int kWorld = 5;
  const auto results = AllReduceOnce(kWorld, GetParam(), kCount, ReduceOp::kSum, true);
  std::vector<std::vector<float>> inputs;
  for (int rank = 0; rank < kWorld; ++rank) inputs.push_back(RandomFloats(kCount, rank));
  for (std::size_t i = 0; i < kCount; ++i) {
    double sum = 0;
    double size = 0;
    for (const auto& input : inputs) {
      sum += static_cast<double>(input[i]);
      size += std::fabs(static_cast<double>(input[i]));
    }
    // Every partial sum and the result are rounded once to 8 bits.
    ASSERT_NEAR(static_cast<double>(results[0][i]), sum, size * 2 * std::ldexp(1, -8))
        << "element " << i;
  }
}

TEST_P(DeterminismTest, MinAndMaxKeepNaNFromAnyRank) {
  constexpr int kWorld = 5;
  testing::RunRanks(kWorld, GetParam(), [](Communicator& comm) {
    for (const std::size_t count : {std::size_t{kWorld}, std::size_t{2000}}) {
      for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
        std::vector<float> data(count, static_cast<float>(comm.rank()));
        // Rank r has its NaN at element r; element kWorld and those behind it have none.
        data[static_cast<std::size_t>(comm.rank())] = std::numeric_limits<float>::quiet_NaN();
        comm.AllReduce(AsBytes(data), DType::kFloat32, op);
        for (std::size_t i = 0; i < count; ++i) {
          if (i < kWorld) {
            EXPECT_TRUE(std::isnan(data[i])) << "element " << i;
          } else {
            ASSERT_EQ(data[i], op == ReduceOp::kMin ? 0.0f : 4.0f);
          }
        }
      }
    }
  });
}

TEST_P(DeterminismTest, ReductionsBetweenProcessesGiveTheBitsOfTheirDefinition) {
  if (testing::kThreadSanitizer) GTEST_SKIP() << "the thread sanitizer does not follow forks";
  std::size_t layout = 0;
  while (testing::Layouts()[layout].name != GetParam().name) ++layout;
  std::vector<testing::Case> cases;
  for (int d = 0; d < kDTypeCount; ++d) {
    for (const Op op : {Op::kAllReduce, Op::kReduce, Op::kReduceScatter}) {
      for (const std::size_t count : {std::size_t{9}, std::size_t{70'001}}) {
        testing::Case c{.world = 5, .layout = layout, .op = op, .dtype = static_cast<DType>(d)};
        c.count = count;
        c.in_place = true;
        c.registered = d % 2 == 0;
        cases.push_back(c);
      }
    }
  }
  testing::RunCasesInProcesses(5, GetParam(), cases);
}

INSTANTIATE_TEST_SUITE_P(Layouts, DeterminismTest, ::testing::ValuesIn(testing::Layouts()),
                         [](const auto& layout) { return layout.param.name; });

}  // namespace
}  // namespace orca::comm
