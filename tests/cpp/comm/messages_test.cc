// Send and receive between two ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <random>

#include "net/expect_error.h"
#include "testing/cases.h"
#include "testing/seed.h"

namespace orca::comm {
namespace {

using ::testing::AllOf;
using testing::BytesOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Layout;

class MessagesTest : public ::testing::TestWithParam<Layout> {};

TEST_P(MessagesTest, ComeByTagWhateverTheOrderOfTheReceives) {
  testing::RunRanks(2, GetParam(), [](Communicator& comm) {
    const std::vector<std::size_t> sizes{0, 1, 4095, 70'000, 1'000'000};
    if (comm.rank() == 0) {
      for (std::size_t tag = 0; tag < sizes.size(); ++tag) {
        std::vector<std::uint8_t> data(sizes[tag], static_cast<std::uint8_t>(tag));
        comm.Send(AsBytes(data), 1, tag);
      }
    } else {
      for (std::size_t tag = sizes.size(); tag-- > 0;) {
        std::vector<std::uint8_t> data(sizes[tag], 0xff);
        EXPECT_EQ(comm.Recv(AsBytes(data), 0, tag), 0);
        EXPECT_THAT(data, Each(tag));
      }
    }
    comm.Barrier();
  });
}

TEST_P(MessagesTest, OfOneTagStayInOrderEvenWhenOneIsPutAsideInTheMiddle) {
  testing::RunRanks(2, GetParam(), [](Communicator& comm) {
    constexpr std::size_t kCount = 4'000'000;
    if (comm.rank() == 0) {
      std::vector<int> first(kCount, 1);
      std::vector<int> second(kCount, 2);
      int other = 3;
      const Work a = comm.StartSend(AsBytes(first), 1, 7);
      const Work b = comm.StartSend(AsBytes(second), 1, 7);
      const Work c = comm.StartSend(BytesOf(other), 1, 8);
      a.Wait();
      b.Wait();
      c.Wait();
    } else {
      // Waiting for tag 8 puts the messages with tag 7 aside, the first of them while its receive
      // is posted.
      int other = 0;
      std::vector<int> first(kCount);
      std::vector<int> second(kCount);
      const Work c = comm.StartRecv(BytesOf(other), 0, 8);
      const Work a = comm.StartRecv(AsBytes(first), 0, 7);
      const Work b = comm.StartRecv(AsBytes(second), 0, 7);
      a.Wait();
      b.Wait();
      c.Wait();
      EXPECT_EQ(std::count(first.begin(), first.end(), 1), static_cast<std::ptrdiff_t>(kCount));
      EXPECT_EQ(std::count(second.begin(), second.end(), 2), static_cast<std::ptrdiff_t>(kCount));
      EXPECT_EQ(other, 3);
    }
    comm.Barrier();
  });
}

TEST_P(MessagesTest, FromAnySourceTellWhoSentThem) {
  testing::RunRanks(4, GetParam(), [](Communicator& comm) {
    if (comm.rank() != 0) {
      int mine = 10 * comm.rank();
      comm.Send(BytesOf(mine), 0, 5);
    } else {
      std::vector<int> sources;
      for (int i = 1; i < 4; ++i) {
        int value = 0;
        const int source = comm.Recv(BytesOf(value), kAnySource, 5);
        EXPECT_EQ(value, 10 * source);
        sources.push_back(source);
      }
      std::sort(sources.begin(), sources.end());
      EXPECT_THAT(sources, ElementsAre(1, 2, 3));
    }
    comm.Barrier();
  });
}

TEST_P(MessagesTest, LargeOnesCrossOnBlockingCallsFromTwoThreads) {
  testing::RunRanks(2, GetParam(), [](Communicator& comm) {
    std::vector<int> out(3'000'000, comm.rank());
    std::vector<int> in(3'000'000, -1);
    const Work receive = comm.StartRecv(AsBytes(in), 1 - comm.rank(), 1);
    comm.Send(AsBytes(out), 1 - comm.rank(), 1);
    receive.Wait();
    EXPECT_EQ(receive.source(), 1 - comm.rank());
    EXPECT_EQ(std::count(in.begin(), in.end(), 1 - comm.rank()), 3'000'000);
    comm.Barrier();
  });
}

TEST_P(MessagesTest, OfManyPairsAndCollectivesRunAtOnce) {
  constexpr int kWorld = 4;
  const std::uint64_t seed = testing::TestSeed();
  testing::RunRanks(kWorld, GetParam(), [seed](Communicator& comm) {
    std::mt19937_64 random(seed);  // the same on every rank: all agree on the program
    std::vector<std::vector<int>> buffers;
    std::vector<Work> works;
    std::vector<std::pair<std::size_t, int>> received;  // buffer and value
    for (std::uint64_t i = 0; i < 200; ++i) {
      const int from = static_cast<int>(random() % kWorld);
      const int to = static_cast<int>(
          (static_cast<std::uint64_t>(from) + 1 + random() % (kWorld - 1)) % kWorld);
      const std::size_t count = random() % 3 == 0 ? random() % 50'000 : random() % 10;
      if (from == comm.rank()) {
        buffers.emplace_back(count, static_cast<int>(i));
        works.push_back(comm.StartSend(AsBytes(buffers.back()), to, i % 5));
      } else if (to == comm.rank()) {
        buffers.emplace_back(count, -1);
        received.emplace_back(buffers.size() - 1, static_cast<int>(i));
        works.push_back(comm.StartRecv(AsBytes(buffers.back()), from, i % 5));
      }
      if (i % 20 == 0) works.push_back(comm.Start(Collective::Barrier()));
    }
    for (const Work& work : works) work.Wait();
    for (const auto& [buffer, value] : received) EXPECT_THAT(buffers[buffer], Each(value));
    comm.Barrier();
  });
}

TEST_P(MessagesTest, OfAnotherSizeThanExpectedEndTheGroupOnBothSides) {  // F32
  const auto errors = testing::RunRanksAndCatch(
      2, GetParam(), [](CommOptions&) {},
      [](Communicator& comm) {
        std::vector<int> data(comm.rank() == 0 ? 10 : 11);
        if (comm.rank() == 0) {
          comm.Send(AsBytes(data), 1, 3);
          comm.Barrier();
        } else {
          comm.Recv(AsBytes(data), 0, 3);
        }
      });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("mismatch"), HasSubstr("40 bytes"), HasSubstr("44"),
                                 HasSubstr("rank 0"))));
}

TEST_P(MessagesTest, FromARankThatLeavesWithoutSendingEndInPeerLost) {  // F03
  std::latch gone(1);
  const auto store = NewMemoryStore();
  const auto errors = testing::RunThreads(2, [&](int rank) {
    auto comm = Join(testing::Seat{.rank = rank, .world = 2, .layout = GetParam(), .store = store});
    if (rank == 1) {
      int value = 1;
      comm->Send(BytesOf(value), 0, 1);
      comm.reset();
      gone.count_down();
      return;
    }
    int value = 0;
    comm->Recv(BytesOf(value), 1, 1);
    gone.wait();
    comm->Recv(BytesOf(value), 1, 2);
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("peer lost"), HasSubstr("rank 1")));
  EXPECT_EQ(errors[1], "");
}

TEST_P(MessagesTest, SentBeforeARankLeavesStillArrive) {
  std::latch gone(1);
  const auto store = NewMemoryStore();
  const auto errors = testing::RunThreads(2, [&](int rank) {
    auto comm = Join(testing::Seat{.rank = rank, .world = 2, .layout = GetParam(), .store = store});
    std::vector<int> values(1000, rank);
    if (rank == 1) {
      comm->Send(AsBytes(values), 0, 1);
      comm.reset();
      gone.count_down();
      return;
    }
    gone.wait();
    EXPECT_EQ(comm->Recv(AsBytes(values), 1, 1), 1);
    EXPECT_THAT(values, Each(1));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(MessagesTest, ToOneselfOrToNobodyAreRefusedAndTheGroupGoesOn) {
  testing::RunRanks(2, GetParam(), [](Communicator& comm) {
    int value = 0;
    const auto bytes = BytesOf(value);
    for (const int peer : {comm.rank(), 2, -1, -7}) {
      EXPECT_THAT(ErrorOf([&] { comm.Send(bytes, peer); }),
                  IsError(Code::kInvalidArgument, HasSubstr("cannot exchange messages")));
    }
    for (const int peer : {comm.rank(), 2, -7}) {
      EXPECT_THAT(ErrorOf([&] { comm.Recv(bytes, peer); }),
                  IsError(Code::kInvalidArgument, HasSubstr("cannot exchange messages")));
    }
    comm.Barrier();
  });
}

TEST_P(MessagesTest, ThatNobodySendsEndAtTheDeadlineNamingTheWait) {
  const auto errors = testing::RunRanksAndCatch(
      2, GetParam(), [](CommOptions& options) { options.timeout = std::chrono::milliseconds(300); },
      [](Communicator& comm) {
        int value = 0;
        if (comm.rank() == 0) comm.Recv(BytesOf(value), 1, 42);
        // Rank 1 stays until the group has ended.
        Collective barrier = Collective::Barrier();
        barrier.timeout = std::chrono::seconds(60);
        comm.Run(barrier);
      });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("timeout"), HasSubstr("rank 0"),
                                 HasSubstr("receive from rank 1"), HasSubstr("tag 42"))));
}

INSTANTIATE_TEST_SUITE_P(Layouts, MessagesTest, ::testing::ValuesIn(testing::Layouts()),
                         [](const auto& layout) { return layout.param.name; });

}  // namespace
}  // namespace orca::comm
