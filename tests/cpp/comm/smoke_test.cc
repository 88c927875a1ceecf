#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "testing/ranks.h"

namespace orca::comm {
namespace {

using testing::Layout;

class SmokeTest : public ::testing::TestWithParam<Layout> {};

TEST_P(SmokeTest, AllReduceSumsEveryElementOverAllRanks) {
  for (const int world : {1, 2, 3, 5}) {
    testing::RunRanks(world, GetParam(), [](Communicator& comm) {
      for (const std::size_t count : {0, 1, 5, 1000, 1024, 5000, 300000, 2000000}) {
        std::vector<float> data(count, static_cast<float>(comm.rank() + 1));
        comm.AllReduce(AsBytes(data), DType::kFloat32);
        const float sum = static_cast<float>(comm.world() * (comm.world() + 1)) / 2.0f;
        EXPECT_EQ(std::count(data.begin(), data.end(), sum), static_cast<std::ptrdiff_t>(count));
        auto* registered = static_cast<float*>(comm.arena()->Allocate(count * sizeof(float)));
        const std::span<float> shared(registered, count);
        std::fill(shared.begin(), shared.end(), static_cast<float>(comm.rank() + 1));
        comm.AllReduce(AsBytes(shared), DType::kFloat32);
        EXPECT_EQ(std::count(shared.begin(), shared.end(), sum),
                  static_cast<std::ptrdiff_t>(count));
        comm.arena()->Free(registered);
      }
    });
  }
}

TEST_P(SmokeTest, MessagesCross) {
  testing::RunRanks(3, GetParam(), [](Communicator& comm) {
    std::vector<int> out(1000000, comm.rank());
    std::vector<int> in(1000000);
    const int next = (comm.rank() + 1) % 3;
    const int previous = (comm.rank() + 2) % 3;
    Work send = comm.StartSend(AsBytes(out), next, 7);
    Work recv = comm.StartRecv(AsBytes(in), previous, 7);
    send.Wait();
    recv.Wait();
    EXPECT_EQ(std::count(in.begin(), in.end(), previous), 1000000);
    comm.Barrier();
  });
}

std::ptrdiff_t Entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

TEST(AloneTest, AGroupOfOneNeedsNoThread) {
  const auto threads = Entries("/proc/self/task");
  const auto comm = Communicator::Connect({.rank = 0, .world = 1}, {});
  EXPECT_EQ(Entries("/proc/self/task"), threads);
  std::vector<float> data(10, 2.0f);
  comm->AllReduce(AsBytes(data), DType::kFloat32);
  EXPECT_EQ(data, std::vector<float>(10, 2.0f));
  comm->Abort("enough");
  EXPECT_THROW(comm->Barrier(), Error);
}

INSTANTIATE_TEST_SUITE_P(Layouts, SmokeTest,
                         ::testing::Values(testing::SharedMemoryLayout(), testing::TcpLayout(),
                                           testing::HostsLayout(2)),
                         [](const auto& layout) { return layout.param.name; });

}  // namespace
}  // namespace orca::comm
