// Asynchronous calls: order, callbacks, several groups, and that none of them waits for a peer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <latch>
#include <numeric>
#include <thread>

#include "net/expect_error.h"
#include "testing/cases.h"
#include "testing/seed.h"

namespace orca::comm {
namespace {

using testing::BytesOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::Layout;
using testing::Seat;

class AsyncTest : public ::testing::TestWithParam<Layout> {};

TEST_P(AsyncTest, ManyCallsInFlightEndInTheirOrderEachWithOneCallback) {
  testing::RunRanks(3, GetParam(), [](Communicator& comm) {
    constexpr int kCalls = 100;
    std::vector<std::vector<int>> data;
    for (int i = 0; i < kCalls; ++i) data.emplace_back(i % 7 == 0 ? 5000 : 10, i);
    std::vector<int> order;  // written by the engine's thread, read after the last Wait
    std::vector<Work> works;
    for (int i = 0; i < kCalls; ++i) {
      works.push_back(comm.Start(
          Collective::AllReduce(AsBytes(data[static_cast<std::size_t>(i)]), DType::kInt32),
          [&order, i](const std::exception_ptr& error, int) {
            EXPECT_FALSE(error);
            order.push_back(i);
          }));
    }
    int blocking = comm.rank();
    comm.AllReduce(BytesOf(blocking), DType::kInt32);  // runs after all of them
    EXPECT_EQ(blocking, 3);
    for (const Work& work : works) work.Wait();
    for (int i = 0; i < kCalls; ++i) {
      EXPECT_TRUE(works[static_cast<std::size_t>(i)].Done());
      EXPECT_THAT(data[static_cast<std::size_t>(i)], Each(3 * i));
    }
    // Callbacks come after the waiters are woken, so the last one may still run: the group's end
    // waits for it.
    comm.Barrier();
    Work last = comm.Start(Collective::Barrier());
    last.Wait();
    std::vector<int> wanted(kCalls);
    std::iota(wanted.begin(), wanted.end(), 0);
    EXPECT_EQ(order, wanted);
  });
}

TEST_P(AsyncTest, BlockingAndAsynchronousCallsMixFreely) {
  testing::RunRanks(2, GetParam(), [](Communicator& comm) {
    for (int round = 0; round < 50; ++round) {
      int a = 1;
      int b = 2;
      const Work work = comm.Start(Collective::AllReduce(BytesOf(a), DType::kInt32));
      comm.AllReduce(BytesOf(b), DType::kInt32);
      work.Wait();
      ASSERT_EQ(a, 2);
      ASSERT_EQ(b, 4);
    }
    EXPECT_EQ(comm.sequence(), 100u);
  });
}

TEST_P(AsyncTest, StartDoesNotWaitForAPeer) {
  // Rank 1 makes its calls only when rank 0 has returned from all of its Starts.
  std::latch started(1);
  testing::RunRanks(2, GetParam(), [&](Communicator& comm) {
    std::vector<std::vector<int>> data(20, std::vector<int>(20'000, 1));
    std::vector<Work> works;
    if (comm.rank() == 1) started.wait();
    for (auto& values : data)
      works.push_back(comm.Start(Collective::AllReduce(AsBytes(values), DType::kInt32)));
    std::vector<int> message(1'000'000, comm.rank());
    std::vector<int> received(1'000'000);
    works.push_back(comm.StartSend(AsBytes(message), 1 - comm.rank()));
    works.push_back(comm.StartRecv(AsBytes(received), 1 - comm.rank()));
    if (comm.rank() == 0) {
      EXPECT_FALSE(works.front().Done());
      started.count_down();
    }
    for (const Work& work : works) work.Wait();
    for (const auto& values : data) EXPECT_THAT(values, Each(2));
    EXPECT_EQ(std::count(received.begin(), received.end(), 1 - comm.rank()), 1'000'000);
    comm.Barrier();
  });
}

TEST_P(AsyncTest, CrossingOrdersOnTwoGroupsDoNotDeadlock) {
  const auto store = NewMemoryStore();
  const auto errors = testing::RunThreads(2, [&](int rank) {
    const auto a =
        Join(Seat{.rank = rank, .world = 2, .layout = GetParam(), .store = store, .group = "a"});
    const auto b =
        Join(Seat{.rank = rank, .world = 2, .layout = GetParam(), .store = store, .group = "b"});
    for (int round = 0; round < 20; ++round) {
      std::vector<int> first(5'000, 1);
      std::vector<int> second(5'000, 2);
      Communicator& early = rank == 0 ? *a : *b;
      Communicator& late = rank == 0 ? *b : *a;
      auto& early_data = rank == 0 ? first : second;
      auto& late_data = rank == 0 ? second : first;
      const Work one = early.Start(Collective::AllReduce(AsBytes(early_data), DType::kInt32));
      const Work two = late.Start(Collective::AllReduce(AsBytes(late_data), DType::kInt32));
      one.Wait();
      two.Wait();
      ASSERT_THAT(first, Each(2));
      ASSERT_THAT(second, Each(4));
    }
    a->Barrier();
    b->Barrier();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(AsyncTest, SeveralGroupsShareOneArenaInOneProcess) {
  const auto store = NewMemoryStore();
  const auto errors = testing::RunThreads(3, [&](int rank) {
    std::vector<std::unique_ptr<Communicator>> groups;
    const auto arena = Arena::Create();
    for (int g = 0; g < 4; ++g) {
      groups.push_back(Join(Seat{.rank = rank,
                                 .world = 3,
                                 .layout = GetParam(),
                                 .store = store,
                                 .group = "group" + std::to_string(g),
                                 .adjust = [&](CommOptions& options) { options.arena = arena; }}));
    }
    std::vector<Work> works;
    std::vector<std::span<int>> arrays;
    for (int i = 0; i < 20; ++i) {
      arrays.emplace_back(static_cast<int*>(arena->Allocate(40'000)), 10'000);
      std::fill(arrays.back().begin(), arrays.back().end(), i);
      works.push_back(groups[static_cast<std::size_t>(i) % 4]->Start(
          Collective::AllReduce(AsBytes(arrays.back()), DType::kInt32)));
    }
    for (const Work& work : works) work.Wait();
    for (int i = 0; i < 20; ++i) EXPECT_THAT(arrays[static_cast<std::size_t>(i)], Each(3 * i));
    for (auto& group : groups) group->Barrier();
    for (const auto& array : arrays) arena->Free(array.data());
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(AsyncTest, ASubgroupWorksBesideTheGroupThatHoldsIt) {
  const auto store = NewMemoryStore();
  const auto errors = testing::RunThreads(4, [&](int rank) {
    const auto all =
        Join(Seat{.rank = rank, .world = 4, .layout = GetParam(), .store = store, .group = "all"});
    const std::string name = rank % 2 == 0 ? "even" : "odd";
    const auto half = Join(
        Seat{.rank = rank / 2, .world = 2, .layout = GetParam(), .store = store, .group = name});
    int whole_sum = rank;
    int half_sum = rank;
    all->AllReduce(BytesOf(whole_sum), DType::kInt32);
    half->AllReduce(BytesOf(half_sum), DType::kInt32);
    EXPECT_EQ(whole_sum, 6);
    EXPECT_EQ(half_sum, rank % 2 == 0 ? 2 : 4);
    half->Barrier();
    all->Barrier();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(AsyncTest, AGroupThatGoesEndsItsPendingCalls) {
  std::promise<std::string> outcome;
  std::latch closed(1);
  int value = 0;  // outlives the group, as a pending call's memory must
  const auto errors = testing::RunRanksAndCatch(
      2, GetParam(), [](CommOptions&) {},
      [&](Communicator& comm) {
        comm.Barrier();
        if (comm.rank() == 1) {
          closed.wait();
          return;
        }
        comm.Start(Collective::AllReduce(BytesOf(value), DType::kInt32),
                   [&](const std::exception_ptr& error, int) {
                     outcome.set_value(testing::DescribeError(error));
                     closed.count_down();
                   });
      });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(outcome.get_future().get(), HasSubstr("closed while a collective was under way"));
}

TEST_P(AsyncTest, WaitWithALimitTellsThatTheCallGoesOn) {
  std::latch waited(1);
  testing::RunRanks(2, GetParam(), [&](Communicator& comm) {
    if (comm.rank() == 1) waited.wait();
    const Work work = comm.Start(Collective::Barrier());
    if (comm.rank() == 0) {
      EXPECT_THAT(ErrorOf([&] { work.Wait(std::chrono::milliseconds(1)); }),
                  IsError(Code::kTimeout, HasSubstr("goes on")));
      waited.count_down();
    }
    work.Wait();
    EXPECT_TRUE(work.Done());
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, AsyncTest, ::testing::ValuesIn(testing::Layouts()),
                         [](const auto& layout) { return layout.param.name; });

// The last rank of a short call does not hand it to another thread.
TEST(AsyncStartTest, RunsHereWhenAllOthersWait) {
  std::atomic<int> here{0};
  testing::RunRanks(2, testing::SharedMemoryLayout(), [&here](Communicator& comm) {
    for (int call = 0; call < 50; ++call) {
      if (comm.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::int64_t value = comm.rank() + call;
      const auto caller = std::this_thread::get_id();
      const Work work = comm.Start(Collective::AllReduce(testing::BytesOf(value), DType::kInt64),
                                   [&here, caller](const std::exception_ptr&, int) {
                                     if (std::this_thread::get_id() == caller) ++here;
                                   });
      work.Wait();
      EXPECT_EQ(value, 1 + 2 * call);
    }
  });
  EXPECT_GT(here, 0);
}

}  // namespace
}  // namespace orca::comm
