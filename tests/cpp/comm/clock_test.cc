// The wall clock jumps (F28): nothing may happen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "testing/cases.h"
#include "testing/processes.h"
#include "testing/seed.h"

namespace orca::comm {
namespace {

constexpr const char* kFaketime = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

time_t WallClock() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec;
}

// Run by the test below in a process whose wall clock is a file's to move.
TEST(ClockInsideTest, F28CollectivesGoOnWhenTheWallClockJumps) {
  const char* file = std::getenv("FAKETIME_TIMESTAMP_FILE");
  if (file == nullptr) GTEST_SKIP() << "runs under libfaketime only";
  const auto jump = [file](const char* offset) {
    const time_t before = WallClock();
    std::ofstream(file) << offset << std::flush;
    const time_t moved = WallClock() - before;
    EXPECT_GT(std::abs(moved), 1800) << "the wall clock did not jump";
  };
  for (const auto& layout : testing::Layouts()) {
    testing::RunRanks(
        3, layout, [](CommOptions& options) { options.peer_timeout = std::chrono::seconds(10); },
        [&](Communicator& comm) {
          for (const char* offset : {"+3600", "-3600", "+0"}) {
            const Work work = comm.rank() == 0 ? comm.Start(Collective::Barrier()) : Work(nullptr);
            if (comm.rank() == 1) jump(offset);  // while rank 0 waits
            if (comm.rank() == 0) {
              work.Wait(std::chrono::seconds(60));
            } else {
              comm.Barrier();
            }
            std::vector<int> data(100'000, 1);
            comm.AllReduce(AsBytes(data), DType::kInt32);
            EXPECT_THAT(data, ::testing::Each(3));
          }
        });
  }
}

TEST(ClockTest, F28AJumpOfAnHourEitherWayChangesNothing) {
  if (testing::kSanitized)
    GTEST_SKIP() << "sanitizers and libfaketime both want to be loaded first";
  if (!std::filesystem::exists(kFaketime))
    GTEST_SKIP() << kFaketime << " is not installed (Debian: libfaketime)";
  const std::string file = ::testing::TempDir() + "orca-clock-" + std::to_string(::getpid());
  std::ofstream(file) << "+0" << std::flush;
  testing::Child child([&](const testing::Voice&) {
    ::setenv("LD_PRELOAD", kFaketime, 1);
    ::setenv("FAKETIME_TIMESTAMP_FILE", file.c_str(), 1);
    ::setenv("FAKETIME_NO_CACHE", "1", 1);
    ::setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1", 1);
    ::execl("/proc/self/exe", "clock_test", "--gtest_filter=ClockInsideTest.*", nullptr);
    ::_exit(2);
  });
  EXPECT_EQ(child.Wait(std::chrono::seconds(120)), 0);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace orca::comm
