#include "runtime/loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <stdexcept>
#include <thread>

namespace orca::runtime {
namespace {

using std::chrono::minutes;

Deadline Limit() { return Deadline::After(minutes(1)); }

/// Somebody who waits for news that the loop brings, in a thread.
struct Caller {
  explicit Caller(LoopThread& loop)
      : thread([this, &loop] {
          returned = loop.RunUntil([this] { return has_news.load(); }, Limit(), turn);
          has_ended = true;
        }) {}

  std::atomic<bool> has_news = false;
  std::atomic<bool> has_ended = false;
  bool returned = false;
  std::condition_variable turn;
  std::jthread thread;
};

class LoopTest : public ::testing::Test {
 protected:
  ~LoopTest() override {
    loop_.Stop();
    thread_.Join();
  }

  /// Has the loop call it; returns who did.
  std::thread::id Call(const std::function<void()>& call) {
    std::atomic<bool> is_done = false;
    std::thread::id who;
    loop_.Post([&] {
      call();
      who = std::this_thread::get_id();
      is_done = true;
    });
    const Deadline limit = Limit();
    while (!is_done && !limit.Passed()) std::this_thread::yield();
    EXPECT_TRUE(is_done);
    return who;
  }

  /// Waits until one of the two runs the loop, and returns it first.
  std::pair<Caller*, Caller*> Sorted(Caller& a, Caller& b) {
    const Deadline limit = Limit();
    while (!limit.Passed()) {
      const std::thread::id who = Call([] {});
      if (who == a.thread.get_id()) return {&a, &b};
      if (who == b.thread.get_id()) return {&b, &a};
    }
    throw std::runtime_error("nobody runs the loop");
  }

  Loop loop_;
  LoopThread thread_{loop_, "test-loop", [](const std::exception&) {}};
};

TEST_F(LoopTest, WhoWaitsRunsTheLoopWhenTheOneBeforeReturnsIt) {
  Caller a(thread_);
  Caller b(thread_);
  auto [first, second] = Sorted(a, b);
  Call([caller = first] { caller->has_news = true; });
  first->thread.join();
  EXPECT_TRUE(first->returned);
  EXPECT_FALSE(second->has_ended);
  // The thread would take it after a while, if nobody waited.
  const Deadline limit = Limit();
  while (Call([] {}) != second->thread.get_id() && !limit.Passed()) std::this_thread::yield();
  EXPECT_EQ(Call([caller = second] { caller->has_news = true; }), second->thread.get_id());
  second->thread.join();
  EXPECT_TRUE(second->returned);
}

TEST_F(LoopTest, NewsForOneWhileAnotherRunsTheLoopEndItsWait) {
  Caller a(thread_);
  Caller b(thread_);
  auto [first, second] = Sorted(a, b);
  Call([this, caller = second] {
    caller->has_news = true;
    thread_.Wake(caller->turn);
  });
  second->thread.join();
  EXPECT_TRUE(second->returned);
  EXPECT_FALSE(first->has_ended);
  Call([caller = first] { caller->has_news = true; });
  first->thread.join();
}

TEST_F(LoopTest, TheThreadRunsTheLoopWhenAnAnswerIsAwaited) {
  {
    Caller caller(thread_);
    Call([&] { caller.has_news = true; });
  }
  std::atomic<bool> is_answered = false;
  loop_.Post([&] { is_answered = true; });
  thread_.Serve();
  const Deadline limit = Limit();
  while (!is_answered && !limit.Passed()) std::this_thread::yield();
  EXPECT_TRUE(is_answered);
}

TEST_F(LoopTest, TheThreadTakesTheLoopBackWhoeverHadItLast) {
  // A thread that nobody tells would sleep for a second each time; a busy machine is slow now and
  // then.
  Loop::Clock::duration least = minutes(1);
  for (int round = 0; round < 10 && least > std::chrono::milliseconds(700); ++round) {
    Caller a(thread_);
    Caller b(thread_);
    auto [first, second] = Sorted(a, b);
    // So long that the thread sleeps until it is told.
    const Deadline kept = Deadline::After(std::chrono::milliseconds(60));
    while (!kept.Passed()) Call([] {});
    Call([caller = first] { caller->has_news = true; });
    first->thread.join();
    Call([caller = second] { caller->has_news = true; });
    second->thread.join();
    const auto begin = Loop::Clock::now();
    Call([] {});
    least = std::min(least, Loop::Clock::now() - begin);
  }
  EXPECT_LT(least, std::chrono::milliseconds(700));
}

TEST_F(LoopTest, ALoopThatHasEndedIsRunByNobody) {
  loop_.Stop();
  thread_.Join();
  std::condition_variable turn;
  EXPECT_FALSE(thread_.RunUntil([] { return false; }, Limit(), turn));
}

}  // namespace
}  // namespace orca::runtime
