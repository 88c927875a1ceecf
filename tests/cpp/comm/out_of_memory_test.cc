// F08: a rank whose memory runs out inside a collective ends with an error, and so do the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "testing/failing_new.h"
#include "testing/processes.h"
#include "testing/ranks.h"

namespace orca::comm {
namespace {

using testing::Clock;
using testing::Layout;

constexpr int kWorld = 3;
constexpr std::chrono::seconds kSoon(30);

class OutOfMemoryTest : public ::testing::TestWithParam<Layout> {};

TEST_P(OutOfMemoryTest, F08EveryRankEndsInTimeWhicheverAllocationFails) {
  bool fired = true;
  std::int64_t failures = 0;
  for (std::int64_t n = 0; fired; ++n) {
    std::atomic<bool> has_fired = false;
    const auto begin = Clock::now();
    const auto errors = testing::RunRanksAndCatch(
        kWorld, GetParam(), [](CommOptions&) {},
        [&](Communicator& comm) {
          std::vector<float> data(5000, static_cast<float>(comm.rank() + 1));
          comm.Barrier();
          if (comm.rank() == 1) {
            const testing::FailingNew failing(n);
            try {
              comm.Run(
                  Collective::AllReduce(std::as_writable_bytes(std::span(data)), DType::kFloat32));
            } catch (...) {
              has_fired = failing.fired();
              throw;
            }
            has_fired = failing.fired();
          } else {
            comm.Run(
                Collective::AllReduce(std::as_writable_bytes(std::span(data)), DType::kFloat32));
          }
          if (data != std::vector<float>(data.size(), 6)) throw std::logic_error("a wrong sum");
        });
    fired = has_fired;
    failures += fired ? 1 : 0;
    EXPECT_LT(Clock::now() - begin, kSoon) << n;
    for (const std::string& error : errors) {
      EXPECT_THAT(error, ::testing::Not(::testing::HasSubstr("a wrong sum"))) << n;
      EXPECT_TRUE(fired || error.empty()) << error;
    }
    ASSERT_LT(n, 200);
  }
  EXPECT_GT(failures, 0);  // Else nothing was tried.
}

INSTANTIATE_TEST_SUITE_P(Layouts, OutOfMemoryTest,
                         ::testing::Values(testing::SharedMemoryLayout(), testing::TcpLayout()),
                         [](const auto& layout) { return layout.param.name; });

}  // namespace
}  // namespace orca::comm
