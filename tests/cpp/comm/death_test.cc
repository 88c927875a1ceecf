// Ranks that die, leave or freeze, as real processes (F02, F03, and F01, F05 as far as comm goes).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <random>
#include <thread>

#include "testing/cases.h"
#include "testing/processes.h"
#include "testing/seed.h"

namespace orca::comm {
namespace {

using ::testing::AllOf;
using testing::Clock;
using ::testing::HasSubstr;
using testing::Layout;
using testing::Outcome;
using testing::RankProcesses;
using testing::Voice;

constexpr std::chrono::seconds kSafety(testing::kSanitized
                                           ? 15
                                           : 5);  // O6: the goal is 1 s; this machine is shared

// Runs all-reduces until the group ends, and says which one it begins.
void ReduceForEver(Communicator& comm, const Voice& voice) {
  std::vector<float> data(200'000, 1.0f);
  for (int step = 0;; ++step) {
    if (step < 200) voice.Tell("step " + std::to_string(step));
    std::fill(data.begin(), data.end(), 1.0f);
    comm.AllReduce(AsBytes(data), DType::kFloat32);
  }
}

class DeathTest : public ::testing::TestWithParam<Layout> {
 protected:
  static constexpr int kWorld = 4;

  void SetUp() override {
    if (testing::kThreadSanitizer) GTEST_SKIP() << "the thread sanitizer does not follow forks";
  }

  // O6 and O7: every survivor names the victim, soon.
  void ExpectNamed(RankProcesses& ranks, int victim, Clock::time_point since,
                   std::chrono::milliseconds limit) {
    const std::string name = "rank " + std::to_string(victim) + " (host " +
                             GetParam().host(victim) + ", pid " +
                             std::to_string(ranks.child(victim).pid()) + ")";
    Clock::time_point last = since;
    for (int rank = 0; rank < kWorld; ++rank) {
      if (rank == victim) continue;
      const Outcome outcome = ranks.End(rank);
      EXPECT_EQ(outcome.code, Code::kPeerLost) << "rank " << rank << ": " << outcome.text;
      EXPECT_THAT(outcome.text, HasSubstr(name)) << "rank " << rank;
      last = std::max(last, outcome.at);
    }
    EXPECT_LT(last - since, limit);
    std::printf("[ O6       ] %s, rank %d: all survivors knew after %s\n", GetParam().name.c_str(),
                victim, testing::Elapsed(since, last).c_str());
  }

  // Lets one rank meet its end in the middle of all-reduces.
  void StrikeInMidCollective(int victim, int signal, std::chrono::milliseconds limit,
                             const std::function<void(CommOptions&)>& adjust) {
    std::mt19937_64 random(testing::TestSeed() + static_cast<std::uint64_t>(victim));
    RankProcesses ranks(kWorld, GetParam(), adjust, ReduceForEver);
    ranks.AwaitLine(victim, "step " + std::to_string(random() % 100));
    const auto struck = Clock::now();
    ranks.child(victim).Signal(signal);
    ExpectNamed(ranks, victim, struck, limit);
  }
};

void Patient(CommOptions&) {}

TEST_P(DeathTest, F01SigkillInMidCollectiveIsNamedByEverySurvivor) {
  for (const int victim : {0, 1, 3}) StrikeInMidCollective(victim, SIGKILL, kSafety, Patient);
}

TEST_P(DeathTest, F05ASilentRankIsNamedWithinThePeerTimeout) {
  for (const int victim : {0, 2}) {
    StrikeInMidCollective(
        victim, SIGSTOP, kSafety + std::chrono::seconds(1), [](CommOptions& options) {
          options.peer_timeout = std::chrono::milliseconds(testing::kSanitized ? 3000 : 1000);
        });
  }
}

void KeepNoCore() {
  const rlimit none{.rlim_cur = 0, .rlim_max = 0};
  ::setrlimit(RLIMIT_CORE, &none);
}

TEST_P(DeathTest, F02ACrashInUserCodeIsNamedByEverySurvivor) {
  for (const int signal : {SIGSEGV, SIGABRT}) {
    RankProcesses ranks(kWorld, GetParam(), Patient,
                        [signal](Communicator& comm, const Voice& voice) {
                          comm.Barrier();
                          if (comm.rank() == 2) {
                            KeepNoCore();
                            voice.Tell(std::to_string(Clock::now().time_since_epoch().count()));
                            std::signal(signal, SIG_DFL);  // as without a sanitizer
                            std::raise(signal);
                          }
                          ReduceForEver(comm, voice);
                        });
    const auto line = ranks.child(2).Listen();
    ASSERT_TRUE(line.has_value());
    ExpectNamed(ranks, 2, Clock::time_point(Clock::duration(std::stoll(*line))), kSafety);
    EXPECT_EQ(WTERMSIG(ranks.child(2).Wait()), signal);
  }
}

TEST_P(DeathTest, F03ARankThatExitsEarlyIsNamedByEverySurvivor) {
  RankProcesses ranks(kWorld, GetParam(), Patient, [](Communicator& comm, const Voice& voice) {
    comm.Barrier();
    if (comm.rank() == 1) {
      voice.Tell(std::to_string(Clock::now().time_since_epoch().count()));
      ::_exit(0);
    }
    ReduceForEver(comm, voice);
  });
  const auto line = ranks.child(1).Listen();
  ASSERT_TRUE(line.has_value());
  ExpectNamed(ranks, 1, Clock::time_point(Clock::duration(std::stoll(*line))), kSafety);
}

// The one before had made its connections; this one never did.
TEST_P(DeathTest, F03ARankThatDiesBeforeTheFirstCollectiveIsNamedByEverySurvivor) {
  for (const int victim : {0, 2}) {
    RankProcesses ranks(kWorld, GetParam(), Patient,
                        [victim](Communicator& comm, const Voice& voice) {
                          if (comm.rank() == victim) {
                            voice.Tell(std::to_string(Clock::now().time_since_epoch().count()));
                            ::_exit(0);
                          }
                          ReduceForEver(comm, voice);
                        });
    const auto line = ranks.child(victim).Listen();
    ASSERT_TRUE(line.has_value());
    ExpectNamed(ranks, victim, Clock::time_point(Clock::duration(std::stoll(*line))), kSafety);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, DeathTest, ::testing::ValuesIn(testing::Layouts()),
                         [](const auto& layout) { return layout.param.name; });

// Leaving in good order is no failure, but whoever waits for the one that left must learn it (F03).
class LeaveTest : public ::testing::TestWithParam<Layout> {
 protected:
  // `leaver` leaves after `calls` barriers; the others want one more.
  void Leave(int leaver, int calls) {
    const auto begin = Clock::now();
    const auto errors = testing::RunRanksAndCatch(
        4, GetParam(), [](CommOptions& options) { options.timeout = std::chrono::seconds(25); },
        [&](Communicator& comm) {
          std::vector<int> data(30'000);
          for (int call = 0; call < calls; ++call) comm.AllReduce(AsBytes(data), DType::kInt32);
          if (comm.rank() != leaver) comm.AllReduce(AsBytes(data), DType::kInt32);
        });
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
    for (int rank = 0; rank < 4; ++rank) {
      const std::string& error = errors[static_cast<std::size_t>(rank)];
      if (rank == leaver) {
        EXPECT_EQ(error, "");
      } else {
        EXPECT_THAT(error, AllOf(HasSubstr("peer lost"),
                                 HasSubstr("rank " + std::to_string(leaver) + " (")));
      }
    }
  }
};

TEST_P(LeaveTest, F03ARankThatLeavesEarlyIsNamedToThoseWhoWaitForIt) {
  for (const int leaver : {0, 1, 3}) Leave(leaver, 3);
}

TEST_P(LeaveTest, F03ARankThatLeavesBeforeTheFirstCollectiveIsNamedToThoseWhoWaitForIt) {
  for (const int leaver : {0, 1, 3}) Leave(leaver, 0);
}

// Rank 0 tells the others of each that leaves, also those who have just closed their link.
TEST_P(LeaveTest, F03RanksThatLeaveTogetherAreNotLost) {
  const int rounds =
      GetParam().name == "SharedMemory" ? 30 : 3;  // elsewhere a round takes a second
  for (int round = 0; round < rounds; ++round) {
    const auto errors = testing::RunRanksAndCatch(
        6, GetParam(), [](CommOptions& options) { options.timeout = std::chrono::seconds(25); },
        [&](Communicator& comm) {
          comm.Barrier();
          if (comm.rank() != 0) return;
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          comm.Barrier();
        });
    ASSERT_THAT(errors[0], HasSubstr("left"));
    ASSERT_THAT(errors[0], ::testing::Not(HasSubstr("lost rank")));
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, LeaveTest, ::testing::ValuesIn(testing::Layouts()),
                         [](const auto& layout) { return layout.param.name; });

}  // namespace
}  // namespace orca::comm
