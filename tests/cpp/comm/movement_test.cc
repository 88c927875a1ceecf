// Every operation that only moves data, against what each rank sent: type, size, root, world,
// layout, parts.
#include <gtest/gtest.h>

#include <algorithm>

#include "testing/cases.h"
#include "testing/seed.h"

namespace orca::comm {
namespace {

using testing::Case;

std::vector<std::size_t> Sizes(DType dtype) {
  const std::size_t inline_count = 4096 / SizeOf(dtype);
  return {0, 1, 5, 64 / SizeOf(dtype) + 1, inline_count, inline_count + 1};
}

bool HasRoot(Op op) { return op == Op::kBroadcast || op == Op::kGather || op == Op::kScatter; }

template <typename Add>
void AddVariants(Case c, int roots, Add add) {
  for (int root = 0; root < (HasRoot(c.op) ? roots : 1); ++root) {
    for (const bool registered : {false, true}) {
      for (const bool in_place : {false, true}) {
        for (const bool unequal : {false, true}) {
          if (c.op == Op::kBroadcast && unequal) continue;
          if (c.op != Op::kAllGather && in_place) continue;
          c.root = root;
          c.registered = registered;
          c.in_place = in_place;
          c.unequal = unequal;
          add(c);
        }
      }
    }
  }
}

std::vector<Case> AllCases(int world, std::size_t layout) {
  std::vector<Case> cases;
  const auto add = [&](const Case& c) { cases.push_back(c); };
  for (const Op op :
       {Op::kBarrier, Op::kBroadcast, Op::kAllGather, Op::kAllToAll, Op::kGather, Op::kScatter}) {
    for (int d = 0; d < kDTypeCount; ++d) {
      Case c{.world = world, .layout = layout, .op = op, .dtype = static_cast<DType>(d)};
      for (const std::size_t count : Sizes(c.dtype)) {
        c.count = count;
        AddVariants(c, world, add);
      }
    }
    for (const DType dtype : {DType::kFloat64, DType::kInt8}) {
      Case c{.world = world, .layout = layout, .op = op, .dtype = dtype};
      c.count =
          3'000'011 / SizeOf(dtype) / (op == Op::kBroadcast ? 1 : static_cast<std::size_t>(world));
      AddVariants(c, world, add);
    }
  }
  return cases;
}

class LongMovementTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(LongMovementTest, BringsEveryElementToItsPlace) {
  for (int world = 1; world <= 8; ++world) {
    testing::RunCases(world, testing::Layouts()[GetParam()], AllCases(world, GetParam()));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, LongMovementTest, ::testing::Range<std::size_t>(0, 4),
                         [](const auto& layout) { return testing::Layouts()[layout.param].name; });

std::vector<Case> Sample(std::uint64_t seed, std::initializer_list<int> worlds) {
  std::vector<Case> cases;
  for (const int world : worlds) {
    for (std::size_t layout = 0; layout < testing::Layouts().size(); ++layout) {
      const auto more = AllCases(world, layout);
      cases.insert(cases.end(), more.begin(), more.end());
    }
  }
  return testing::CoverPairs(std::move(cases), seed);
}

template <typename Run>
void RunByGroup(const std::vector<Case>& sample, Run run) {
  for (int world = 1; world <= 8; ++world) {
    for (std::size_t layout = 0; layout < testing::Layouts().size(); ++layout) {
      std::vector<Case> chosen;
      for (const Case& c : sample) {
        if (c.world == world && c.layout == layout) chosen.push_back(c);
      }
      if (!chosen.empty()) run(world, testing::Layouts()[layout], chosen);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(MovementSampleTest, CoversEveryPairOfProperties) {
  RunByGroup(Sample(testing::TestSeed(), {1, 2, 3, 4, 5, 6, 7, 8}), testing::RunCases);
}

TEST(MovementSampleTest, CoversEveryPairOfPropertiesBetweenProcesses) {
  if (testing::kThreadSanitizer) GTEST_SKIP() << "the thread sanitizer does not follow forks";
  RunByGroup(Sample(testing::TestSeed(), {2, 5}), testing::RunCasesInProcesses);
}

}  // namespace
}  // namespace orca::comm
