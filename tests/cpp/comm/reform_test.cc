// Groups that are aborted and form again in the same processes (F16, F10).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "testing/cases.h"
#include "testing/processes.h"
#include "testing/seed.h"

namespace orca::comm {
namespace {

using ::testing::AllOf;
using testing::BytesOf;
using testing::Clock;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::Layout;
using testing::Seat;

class ReformTest : public ::testing::TestWithParam<Layout> {};

void ExpectItWorks(Communicator& comm) {
  std::vector<int> data(20'000, 1);
  comm.AllReduce(AsBytes(data), DType::kInt32);
  EXPECT_THAT(data, Each(comm.world()));
}

TEST_P(ReformTest, F16AfterAnAbortTheSameProcessesFormTheGroupAgainTenTimes) {
  const auto store = NewMemoryStore();
  const auto errors = testing::RunThreads(3, [&](int rank) {
    for (std::uint64_t generation = 0; generation < 10; ++generation) {
      const auto comm = Join(Seat{.rank = rank,
                                  .world = 3,
                                  .layout = GetParam(),
                                  .store = store,
                                  .generation = generation});
      ExpectItWorks(*comm);
      // A different rank aborts each time; the others are in a collective or about to enter it.
      if (rank == static_cast<int>(generation % 3)) {
        comm->Abort("cycle " + std::to_string(generation));
      }
      try {
        for (;;) comm->Barrier();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kAborted);
        EXPECT_THAT(error.what(), AllOf(HasSubstr("rank " + std::to_string(generation % 3)),
                                        HasSubstr("cycle " + std::to_string(generation))));
      }
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(ReformTest, AbortFromAnotherThreadEndsEveryPendingCallOnEveryRank) {
  std::latch waiting(2);  // two ranks wait in a collective that the third never enters
  const auto begin = Clock::now();
  const auto errors = testing::RunRanksAndCatch(
      3, GetParam(), [](CommOptions&) {},
      [&](Communicator& comm) {
        if (comm.rank() == 2) {
          waiting.wait();
          comm.Abort("the user said so");
          return;
        }
        std::vector<int> data(50'000);
        const Work pending = comm.Start(Collective::AllReduce(AsBytes(data), DType::kInt32));
        int received = 0;
        const Work message = comm.StartRecv(BytesOf(received), 2, 9);
        waiting.count_down();
        for (const Work& work : {pending, message}) {
          try {
            work.Wait();
            ADD_FAILURE() << "a call survived the abort";
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), Code::kAborted) << error.what();
            EXPECT_THAT(error.what(), HasSubstr("the user said so"));
          }
        }
        comm.Barrier();  // later calls end, too
      });
  EXPECT_THAT(errors[0],
              AllOf(HasSubstr("aborted"), HasSubstr("the user said so"), HasSubstr("rank 2")));
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
}

TEST_P(ReformTest, F16SurvivorsOfAKilledRankFormASmallerGroup) {
  if (testing::kThreadSanitizer) GTEST_SKIP() << "the thread sanitizer does not follow forks";
  constexpr int kWorld = 4;
  constexpr int kVictim = 1;
  testing::RankProcesses ranks(
      kWorld, [](std::shared_ptr<Store> store, int rank, const testing::Voice& voice) {
        auto comm = Join(
            Seat{.rank = rank, .world = kWorld, .layout = testing::HostsLayout(2), .store = store});
        try {
          for (int step = 0;; ++step) {
            if (step == 5 && rank == kVictim) std::raise(SIGKILL);
            ExpectItWorks(*comm);
          }
        } catch (const Error& error) {
          voice.Tell(CodeName(error.code()));
        }
        comm.reset();
        const int new_rank = rank > kVictim ? rank - 1 : rank;
        comm = Join(Seat{.rank = new_rank,
                         .world = kWorld - 1,
                         .layout = testing::HostsLayout(2),
                         .store = store,
                         .generation = 1});
        ExpectItWorks(*comm);
        voice.Tell(::testing::Test::HasFailure() ? "wrong" : "works again");
      });
  for (int rank = 0; rank < kWorld; ++rank) {
    if (rank == kVictim) continue;
    ranks.AwaitLine(rank, "peer lost");
    ranks.AwaitLine(rank, "works again");
    EXPECT_EQ(ranks.End(rank).code, std::nullopt);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ReformTest, ::testing::ValuesIn(testing::Layouts()),
                         [](const auto& layout) { return layout.param.name; });

// A store that answers for another generation: what a worker of an older run sees of the new one.
class StaleStore final : public Store {
 public:
  explicit StaleStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  void Set(const std::string& key, const std::string& value) override {
    store_->Set(Translate(key), value);
  }
  std::string Get(const std::string& key, std::chrono::milliseconds timeout) override {
    return store_->Get(Translate(key), timeout);
  }

 private:
  static std::string Translate(std::string key) {
    if (const auto at = key.find("/7/"); at != std::string::npos) key.replace(at, 3, "/8/");
    return key;
  }
  std::shared_ptr<Store> store_;
};

TEST(StaleGenerationTest, F16IsRefusedInTheHandshake) {
  const auto store = NewMemoryStore();
  for (const auto& layout : {testing::SharedMemoryLayout(), testing::TcpLayout()}) {
    const auto begin = Clock::now();
    const auto errors = testing::RunThreads(2, [&](int rank) {
      const auto seen = rank == 0 ? store : std::make_shared<StaleStore>(store);
      const auto comm = Join(Seat{.rank = rank,
                                  .world = 2,
                                  .layout = layout,
                                  .store = seen,
                                  .group = layout.name,
                                  .generation = rank == 0 ? 8u : 7u,
                                  .adjust = [](CommOptions& options) {
                                    options.connect_timeout = std::chrono::seconds(3);
                                  }});
    });
    EXPECT_THAT(errors[0], HasSubstr("did not form in time"));
    EXPECT_THAT(errors[1], AllOf(HasSubstr("rank 1"), HasSubstr("cannot connect to rank 0")));
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
  }
}

}  // namespace
}  // namespace orca::comm
