// Beyond 32 bits (F41 as far as comm goes).
#include <gtest/gtest.h>

#include <algorithm>

#include "orca/core/host.h"
#include "testing/ranks.h"
#include "testing/seed.h"

namespace orca::comm {
namespace {

constexpr std::size_t kHuge = (std::size_t{4} << 30) + 4096;

TEST(LongHugeTest, ABroadcastAndAnAllReduceOfMoreThanFourGibibytesAreRightToTheLastByte) {
  if (testing::kSanitized) GTEST_SKIP() << "the sanitizers' shadow memory does not fit beside it";
  if (const auto left = AvailableMemory(); left.bytes < std::size_t{12} << 30) {
    GTEST_SKIP() << "needs 12 GiB, " << left.limit << " leaves " << HumanBytes(left.bytes);
  }
  testing::RunRanks(2, testing::SharedMemoryLayout(), [](Communicator& comm) {
    auto* memory = static_cast<std::uint8_t*>(comm.arena()->Allocate(kHuge));
    const std::span<std::uint8_t> data(memory, kHuge);
    std::fill(data.begin(), data.end(), static_cast<std::uint8_t>(comm.rank() + 1));
    data.back() = static_cast<std::uint8_t>(10 + comm.rank());
    comm.AllReduce(AsBytes(data), DType::kUInt8);
    EXPECT_EQ(std::find_if(data.begin(), data.end() - 1, [](auto byte) { return byte != 3; }),
              data.end() - 1);
    EXPECT_EQ(data.back(), 21);
    comm.Barrier();  // the peer reads this rank's memory no more
    if (comm.rank() == 1) {
      std::fill(data.begin(), data.end(), std::uint8_t{7});
      data.back() = 9;
    }
    comm.Broadcast(AsBytes(data), DType::kUInt8, 1);
    EXPECT_EQ(std::find_if(data.begin(), data.end() - 1, [](auto byte) { return byte != 7; }),
              data.end() - 1);
    EXPECT_EQ(data.back(), 9);
    comm.arena()->Free(memory);
  });
}

}  // namespace
}  // namespace orca::comm
