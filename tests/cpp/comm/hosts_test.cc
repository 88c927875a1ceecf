// Several hosts, each a network namespace of its own, with healthy, slow, cut and broken links
// (F10-F12, F14, F18).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "testing/cases.h"
#include "testing/netns.h"
#include "testing/processes.h"
#include "testing/seed.h"

namespace orca::comm {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using testing::Clock;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::RankProcesses;
using testing::Seat;
using testing::Voice;

constexpr int kPerHost = 2;
constexpr milliseconds kPeerTimeout(testing::kSanitized ? 3000 : 1000);
constexpr std::chrono::seconds kSafety(testing::kSanitized ? 20 : 8);

class HostsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::kThreadSanitizer) GTEST_SKIP() << "the thread sanitizer does not follow forks";
  }

  bool Make(int hosts) {
    std::string reason;
    network_.reset();
    network_ = testing::Network::Create(hosts, &reason);
    if (!network_) std::printf("[ SKIPPED  ] %s\n", reason.c_str());
    return network_ != nullptr;
  }

  // Ranks 0 and 1 on the first host, 2 and 3 on the second, and so on; hosts and addresses are
  // found out.
  Seat SeatOf(int rank, int world, std::shared_ptr<Store> store,
              std::uint64_t generation = 0) const {
    network_->Enter(rank / kPerHost);
    return {.rank = rank,
            .world = world,
            .layout = testing::HostsLayout(kPerHost),
            .store = std::move(store),
            .generation = generation,
            .adjust = [](CommOptions& options) {
              options.host.clear();
              options.address.clear();
              options.peer_timeout = kPeerTimeout;
              options.connect_timeout = std::chrono::seconds(20);
            }};
  }

  RankProcesses Start(int world, const RankProcesses::Body& body) const {
    return RankProcesses(world,
                         [&, world](std::shared_ptr<Store> store, int rank, const Voice& voice) {
                           const auto comm = Join(SeatOf(rank, world, std::move(store)));
                           body(*comm, voice);
                         });
  }

  std::unique_ptr<testing::Network> network_;
};

void ReduceForEver(Communicator& comm, const Voice& voice) {
  std::vector<float> data(100'000, 1.0f);
  for (int step = 0;; ++step) {
    if (step < 100) voice.Tell("step " + std::to_string(step));
    comm.AllReduce(AsBytes(data), DType::kFloat32);
  }
}

std::vector<testing::Case> SomeCases(int world) {
  std::vector<testing::Case> cases;
  for (int op = 0; op < kOpCount; ++op) {
    for (const std::size_t count : {std::size_t{3}, std::size_t{1500}, std::size_t{150'000}}) {
      testing::Case c{
          .world = world, .layout = 2, .op = static_cast<Op>(op), .count = count, .root = 1};
      c.in_place = true;
      c.registered = count == 1500;
      if (c.op == Op::kAllToAll) c.in_place = false;
      cases.push_back(c);
    }
  }
  return cases;
}

TEST_F(HostsTest, RanksOfTwoAndThreeHostsWorkTogether) {
  for (const int hosts : {2, 3}) {
    if (!Make(hosts)) GTEST_SKIP();
    const int world = hosts * kPerHost;
    RankProcesses ranks = Start(world, [&](Communicator& comm, const Voice& voice) {
      voice.Tell(comm.Describe());
      testing::CaseRunner runner(comm, testing::HostsLayout(kPerHost));
      for (const auto& c : SomeCases(comm.world())) runner.Run(c);
      comm.Barrier();
      voice.Tell(::testing::Test::HasFailure() ? "wrong" : "right");
    });
    for (int rank = 0; rank < world; ++rank) {
      EXPECT_EQ(ranks.child(rank).Listen(), std::to_string(world) + " ranks on " +
                                                std::to_string(hosts) +
                                                " hosts, shared memory and TCP");
      ranks.AwaitLine(rank, "right");
      EXPECT_EQ(ranks.End(rank).code, std::nullopt);
    }
  }
}

TEST_F(HostsTest, F14ASlowLinkIsOnlySlower) {
  if (!Make(2)) GTEST_SKIP();
  network_->Run(1, "tc qdisc add dev eth0 root tbf rate 50mbit burst 16kb latency 50ms");
  const auto begin = Clock::now();
  RankProcesses ranks = Start(4, [](Communicator& comm, const Voice& voice) {
    std::vector<float> data(500'000, static_cast<float>(comm.rank()));
    comm.AllReduce(AsBytes(data), DType::kFloat32);
    voice.Tell(std::count(data.begin(), data.end(), 6.0f) == 500'000 ? "right" : "wrong");
    comm.Barrier();
  });
  for (int rank = 0; rank < 4; ++rank) {
    ranks.AwaitLine(rank, "right");
    EXPECT_EQ(ranks.End(rank).code, std::nullopt);
  }
  std::printf("[ F14      ] 2 MB all-reduce over 50 Mbit/s: %s with start and end\n",
              testing::Elapsed(begin, Clock::now()).c_str());
}

class CutTest : public HostsTest {
 protected:
  // All ranks end with kPeerLost naming a rank of the other host, within the limit.
  void ExpectCut(const std::function<void()>& cut) {
    RankProcesses ranks = Start(4, ReduceForEver);
    for (int rank = 0; rank < 4; ++rank) ranks.AwaitLine(rank, "step 20");
    const auto begin = Clock::now();
    cut();
    Clock::time_point last = begin;
    for (int rank = 0; rank < 4; ++rank) {
      const Outcome outcome = ranks.End(rank);
      EXPECT_EQ(outcome.code, Code::kPeerLost) << "rank " << rank << ": " << outcome.text;
      EXPECT_THAT(outcome.text, AllOf(AnyOf(HasSubstr("rank 0 ("), HasSubstr("rank 1 (")),
                                      AnyOf(HasSubstr("rank 2 ("), HasSubstr("rank 3 ("))))
          << "rank " << rank;
      last = std::max(last, outcome.at);
    }
    EXPECT_LT(last - begin, kSafety);
    std::printf("[ O6       ] both sides knew after %s (peer_timeout %.1f s)\n",
                testing::Elapsed(begin, last).c_str(),
                std::chrono::duration<double>(kPeerTimeout).count());
  }
};

TEST_F(CutTest, F11AHostThatVanishesEndsBothSidesWithinThePeerTimeout) {
  if (!Make(2)) GTEST_SKIP();
  ExpectCut([&] { network_->Run(1, "ip link set eth0 down"); });
}

TEST_F(CutTest, F12APartitionEndsBothSidesWithinThePeerTimeout) {
  if (!Make(2)) GTEST_SKIP();
  ExpectCut([&] {
    network_->CutIncoming(1);
    network_->CutOutgoing(1);
  });
}

TEST_F(CutTest, F12AOneWayLinkEndsBothSidesWithinThePeerTimeout) {
  for (const bool incoming : {true, false}) {
    if (!Make(2)) GTEST_SKIP();
    ExpectCut([&] { incoming ? network_->CutIncoming(1) : network_->CutOutgoing(1); });
  }
}

TEST_F(HostsTest, F10AfterATcpResetTheSameProcessesFormTheGroupAgain) {
  if (!Make(2)) GTEST_SKIP();
  RankProcesses ranks(4, [&](std::shared_ptr<Store> store, int rank, const Voice& voice) {
    try {
      const auto comm = Join(SeatOf(rank, 4, store));
      ReduceForEver(*comm, voice);
    } catch (const Error& error) {
      voice.Tell(CodeName(error.code()));
    }
    const auto comm = Join(SeatOf(rank, 4, store, 1));
    int value = 1;
    comm->AllReduce(testing::BytesOf(value), DType::kInt32);
    voice.Tell("sum " + std::to_string(value));
    comm->Barrier();
  });
  for (int rank = 0; rank < 4; ++rank) ranks.AwaitLine(rank, "step 20");
  const auto begin = Clock::now();
  if (!network_->Try(1, "ss -K dst 10.77.0.1")) {
    network_->Run(1,
                  "nft 'add table inet reset; add chain inet reset in { type filter hook input "
                  "priority 0; }; "
                  "add rule inet reset in tcp dport 1-65535 reject with tcp reset'");
  }
  for (int rank = 0; rank < 4; ++rank) ranks.AwaitLine(rank, "peer lost");
  EXPECT_LT(Clock::now() - begin, kSafety);
  network_->Try(1, "nft delete table inet reset");
  for (int rank = 0; rank < 4; ++rank) {
    ranks.AwaitLine(rank, "sum 4");
    EXPECT_EQ(ranks.End(rank).code, std::nullopt);
  }
}

TEST_F(HostsTest, F18TheReachableOneOfSeveralAddressesIsFound) {
  if (!Make(2)) GTEST_SKIP();
  for (int host = 0; host < 2; ++host) {
    // The first address of each host leads nowhere from the other.
    network_->Run(host, "ip addr flush dev eth0");
    network_->Run(host, "ip addr add 10.99." + std::to_string(host) + ".1/24 dev eth0");
    network_->Run(host, "ip addr add " + network_->address(host) + "/24 dev eth0");
    network_->Run(host, "ip route add blackhole 10.99." + std::to_string(1 - host) + ".0/24");
  }
  RankProcesses ranks = Start(4, [](Communicator& comm, const Voice& voice) {
    int value = 1;
    comm.AllReduce(testing::BytesOf(value), DType::kInt32);
    voice.Tell("sum " + std::to_string(value));
    comm.Barrier();
  });
  for (int rank = 0; rank < 4; ++rank) ranks.AwaitLine(rank, "sum 4");
}

TEST_F(HostsTest, F18AHostThatCannotBeReachedIsReportedWithWhatWasTried) {
  if (!Make(2)) GTEST_SKIP();
  network_->CutIncoming(1);
  RankProcesses ranks(2, [&](std::shared_ptr<Store> store, int rank, const Voice&) {
    network_->Enter(rank);
    Seat seat{.rank = rank, .world = 2, .layout = testing::TcpLayout(), .store = std::move(store)};
    seat.adjust = [](CommOptions& options) {
      options.host.clear();
      options.address.clear();
      options.connect_timeout = std::chrono::seconds(3);
    };
    Join(seat);
  });
  EXPECT_THAT(ranks.End(0).text, AllOf(HasSubstr("did not form in time"), HasSubstr("rank 1 (")));
  EXPECT_THAT(ranks.End(1).text,
              AllOf(HasSubstr("cannot connect to rank 0"), HasSubstr("tried 10.77.0.1:")));
}

TEST(NameTest, F18AnAddressThatDoesNotResolveIsNamed) {
  const auto store = NewMemoryStore();
  const auto errors = testing::RunThreads(2, [&](int rank) {
    Join(Seat{.rank = rank,
              .world = 2,
              .layout = testing::TcpLayout(),
              .store = store,
              .adjust = [rank](CommOptions& options) {
                if (rank == 1) options.address = "no-such-host.invalid";
                options.connect_timeout = std::chrono::seconds(2);
              }});
  });
  EXPECT_THAT(errors[1], AllOf(HasSubstr("unavailable"), HasSubstr("no-such-host.invalid")));
  EXPECT_THAT(errors[0], HasSubstr("rank 1 did not come"));
}

}  // namespace
}  // namespace orca::comm
