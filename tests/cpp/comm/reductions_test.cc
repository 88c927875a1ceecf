// Every reduction against its definition: operation, type, operator, size, world, layout, in place,
// registered.
#include <gtest/gtest.h>

#include "testing/cases.h"
#include "testing/ranks.h"
#include "testing/seed.h"

namespace orca::comm {
namespace {

using testing::Case;

// Nothing, one, few, odd, around the inline limit and the cache line.
std::vector<std::size_t> Sizes(DType dtype) {
  const std::size_t inline_count = 4096 / SizeOf(dtype);
  return {0, 1, 5, 64 / SizeOf(dtype) + 1, inline_count, inline_count + 1, 20011 / SizeOf(dtype)};
}

constexpr std::size_t kLongBytes =
    3'200'004;  // several windows over TCP, staging pieces and frames

std::vector<ReduceOp> OperatorsFor(DType dtype) {
  std::vector<ReduceOp> operators;
  for (int op = 0; op < kReduceOpCount; ++op) {
    if (Supports(static_cast<ReduceOp>(op), dtype)) operators.push_back(static_cast<ReduceOp>(op));
  }
  return operators;
}

// Calls add(Case) for both values of in_place and registered, and of unequal where it means
// something.
template <typename Add>
void AddVariants(Case c, Add add) {
  for (const bool registered : {false, true}) {
    for (const bool in_place : {false, true}) {
      for (const bool unequal : {false, true}) {
        if (c.op == Op::kReduce && !in_place) continue;
        if (c.op != Op::kReduceScatter && unequal) continue;
        c.registered = registered;
        c.in_place = in_place;
        c.unequal = unequal;
        add(c);
      }
    }
  }
}

std::vector<Case> AllCases(int world, std::size_t layout) {
  std::vector<Case> cases;
  int turn = 0;
  const auto add = [&](Case c) {
    if (c.op == Op::kReduce) c.root = turn++ % world;
    cases.push_back(c);
  };
  for (const Op op : {Op::kAllReduce, Op::kReduce, Op::kReduceScatter}) {
    for (int d = 0; d < kDTypeCount; ++d) {
      const auto dtype = static_cast<DType>(d);
      const auto operators = OperatorsFor(dtype);
      Case c{.world = world, .layout = layout, .op = op, .dtype = dtype};
      for (const ReduceOp reduce : operators) {
        c.reduce = reduce;
        for (const std::size_t count : Sizes(dtype)) {
          c.count = count;
          AddVariants(c, add);
        }
      }
      c.reduce = operators[static_cast<std::size_t>(world + d) % operators.size()];
      c.count = kLongBytes / SizeOf(dtype) /
                (op == Op::kReduceScatter ? static_cast<std::size_t>(world) : 1);
      AddVariants(c, add);
    }
  }
  return cases;
}

class LongReductionsTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(LongReductionsTest, GiveTheBitsOfTheirDefinitionOnEveryRank) {
  for (int world = 1; world <= 8; ++world) {
    testing::RunCases(world, testing::Layouts()[GetParam()], AllCases(world, GetParam()));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, LongReductionsTest, ::testing::Range<std::size_t>(0, 4),
                         [](const auto& layout) { return testing::Layouts()[layout.param].name; });

TEST(ReductionSampleTest, CoversEveryPairOfProperties) {
  std::vector<Case> cases;
  for (int world = 1; world <= 8; ++world) {
    for (std::size_t layout = 0; layout < testing::Layouts().size(); ++layout) {
      const auto more = AllCases(world, layout);
      cases.insert(cases.end(), more.begin(), more.end());
    }
  }
  const auto sample = testing::CoverPairs(std::move(cases), testing::TestSeed());
  for (int world = 1; world <= 8; ++world) {
    for (std::size_t layout = 0; layout < testing::Layouts().size(); ++layout) {
      std::vector<Case> chosen;
      for (const Case& c : sample) {
        if (c.world == world && c.layout == layout) chosen.push_back(c);
      }
      testing::RunCases(world, testing::Layouts()[layout], chosen);
      if (HasFailure()) return;
    }
  }
}

// Long registered arrays are shared out in blocks, and every call begins with the first one again.
TEST(SharedOutTest, ReducesEveryBlockOnceInEveryCall) {
  for (const int world : {1, 2, 3, 5}) {
    testing::RunRanks(world, testing::SharedMemoryLayout(), [world](Communicator& comm) {
      const std::size_t count =
          static_cast<std::size_t>(world) * (std::size_t{2} << 20) / 4 + 12345;
      auto* const memory = static_cast<std::int32_t*>(comm.arena()->Allocate(count * 4));
      const std::span<std::int32_t> data(memory, count);
      for (std::int32_t call = 0; call < 3; ++call) {
        for (std::size_t i = 0; i < count; ++i) {
          data[i] = static_cast<std::int32_t>(i % 1009) * (comm.rank() + 1) + call;
        }
        comm.AllReduce(AsBytes(data), DType::kInt32);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < count; ++i) {
          const std::int32_t ranks = world * (world + 1) / 2;
          wrong += data[i] != static_cast<std::int32_t>(i % 1009) * ranks + call * world;
        }
        EXPECT_EQ(wrong, 0U) << "rank " << comm.rank() << " of " << world << ", call " << call;
        comm.Barrier();
      }
      comm.arena()->Free(memory);
    });
  }
}

}  // namespace
}  // namespace orca::comm
