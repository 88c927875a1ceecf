// Worlds far beyond the number of cores.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "testing/cases.h"
#include "testing/seed.h"

namespace orca::comm {
namespace {

using testing::Case;

// Every operation, short and long, once.
std::vector<Case> EveryOperation(int world, std::size_t layout) {
  std::vector<Case> cases;
  for (int op = 0; op < kOpCount; ++op) {
    for (const std::size_t count : {std::size_t{3}, std::size_t{5000}}) {
      Case c{.world = world,
             .layout = layout,
             .op = static_cast<Op>(op),
             .count = count,
             .root = world / 2};
      c.in_place = c.op == Op::kAllReduce || c.op == Op::kReduce;
      cases.push_back(c);
      c.registered = true;
      c.unequal = c.op != Op::kAllReduce && c.op != Op::kReduce && c.op != Op::kBroadcast;
      cases.push_back(c);
    }
  }
  return cases;
}

// Asks for descriptors for `wanted`; returns whether this process may have them.
bool RaiseDescriptorLimit(rlim_t wanted) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= wanted) return true;
  limit.rlim_cur = wanted;
  limit.rlim_max = std::max(limit.rlim_max, wanted);
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

TEST(LargeWorldsTest, SixteenRanksShareMemory) {
  testing::RunCases(16, testing::Layouts()[0], EveryOperation(16, 0));
}

TEST(LargeWorldsTest, SixtyFourRanksShareMemory) {
  testing::RunCases(64, testing::Layouts()[0], EveryOperation(64, 0));
}

TEST(LongLargeWorldsTest, TwoHundredFiftySixRanksShareMemory) {
  if (testing::kSanitized) GTEST_SKIP() << "the sanitizer's shadow of 256 mappings takes 19 GB";
  if (!RaiseDescriptorLimit(10000)) GTEST_SKIP() << "RLIMIT_NOFILE cannot be raised to 10000";
  auto cases = EveryOperation(256, 0);
  // As threads of one process they would map 256 * 255 segments, more than vm.max_map_count allows
  // it.
  for (Case& c : cases) c.registered = false;
  testing::RunCases(256, testing::Layouts()[0], cases);
}

TEST(LargeWorldsTest, SixteenRanksTalkOverTcp) {
  if (!RaiseDescriptorLimit(4000)) GTEST_SKIP() << "RLIMIT_NOFILE cannot be raised to 4000";
  testing::RunCases(16, testing::Layouts()[1], EveryOperation(16, 1));
}

TEST(LargeWorldsTest, SixteenRanksOnFiveUnevenHosts) {
  testing::RunCases(16, testing::Layouts()[3], EveryOperation(16, 3));
}

TEST(LongLargeWorldsTest, SixtyFourRanksTalkOverTcp) {
  if (testing::kSanitized) GTEST_SKIP() << "16,000 connections take too long under a sanitizer";
  if (!RaiseDescriptorLimit(19000)) GTEST_SKIP() << "RLIMIT_NOFILE cannot be raised to 19000";
  testing::RunCases(64, testing::Layouts()[1], EveryOperation(64, 1));
}

}  // namespace
}  // namespace orca::comm
