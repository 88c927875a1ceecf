// Processes beside a job that put and open its shards.
#include "orca/runtime/guest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "orca/core/error.h"
#include "orca/data/shard.h"
#include "orca/net/secret.h"
#include "orca/runtime/context.h"

namespace orca::runtime {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kLong(10'000);

std::unique_ptr<Context> Start() {
  ContextOptions options;
  options.cores = 1;
  options.agent = ORCA_TEST_AGENT;
  return Context::Start(options);
}

std::shared_ptr<const data::Shard> Put(const std::shared_ptr<data::ShardHome>& home,
                                       const std::vector<std::int64_t>& numbers) {
  const std::vector<data::ColumnSpec> specs = {{.name = "n", .dtype = DType::kInt64}};
  const std::vector<data::Column> columns = {{.values = std::as_bytes(std::span(numbers))}};
  return data::Shard::Put(home, specs, numbers.size(), columns);
}

std::vector<std::int64_t> Read(const data::Shard& shard) {
  const auto bytes = shard.columns().at(0).values;
  std::vector<std::int64_t> numbers(shard.rows());
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(std::int64_t));
  return numbers;
}

std::string Message(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Runs `call` in a child of this process; says how it ended.
int InChild(const std::function<void()>& call) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      call();
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

bool IsGone(Context& context, std::uint64_t shard) {
  for (int i = 0; i < 500; ++i) {
    try {
      // A hold for each look: one that was there before the other's went would keep the shard.
      data::Shard::Open(data::ShardHold::Take(context.shards(), shard));
    } catch (const Error&) {
      return true;
    }
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

TEST(Guest, LeavesShardsThatTheDriverReadsAfterItHasGone) {
  const auto context = Start();
  const Door door = context->OpenDoor();
  const std::uint64_t basket = context->NewBasket();
  std::uint64_t id = 0;
  {
    const auto guest = Guest::Join(door, kLong);
    const auto shard = Put(guest->shards(), {7, 8, 9});
    id = shard->hold()->id();
    guest->Leave(basket, std::vector<std::uint64_t>{id});
  }
  const auto holds = context->EmptyBasket(basket, {id});
  ASSERT_EQ(holds.size(), 1U);
  EXPECT_EQ(Read(*data::Shard::Open(holds[0])), (std::vector<std::int64_t>{7, 8, 9}));
}

TEST(Guest, OpensShardsOfTheDriver) {
  const auto context = Start();
  const auto shard = Put(context->shards(), {1, 2});
  const auto guest = Guest::Join(context->OpenDoor(), kLong);
  const auto hold = data::ShardHold::Take(guest->shards(), shard->hold()->id());
  EXPECT_EQ(Read(*data::Shard::Open(hold)), (std::vector<std::int64_t>{1, 2}));
}

TEST(Guest, WhatTheDriverDoesNotWantFromABasketIsDropped) {
  const auto context = Start();
  const std::uint64_t basket = context->NewBasket();
  const auto guest = Guest::Join(context->OpenDoor(), kLong);
  std::vector<std::uint64_t> ids;
  for (int attempt = 0; attempt < 2; ++attempt) {  // a task that ran twice
    const auto shard = Put(guest->shards(), {attempt});
    ids.push_back(shard->hold()->id());
    guest->Leave(basket, std::vector<std::uint64_t>{ids.back()});
  }
  const auto holds = context->EmptyBasket(basket, {ids[1]});
  EXPECT_EQ(Read(*data::Shard::Open(holds.at(0))), std::vector<std::int64_t>{1});
  EXPECT_TRUE(IsGone(*context, ids[0]));
  const auto late = Put(guest->shards(), {3});
  EXPECT_THAT(
      Message([&] { guest->Leave(basket, std::vector<std::uint64_t>{late->hold()->id()}); }),
      HasSubstr("nobody waits for these shards any more"));
}

TEST(Guest, WhatItHasPutGoesWithItWhenItIsKilled) {
  const auto context = Start();
  const Door door = context->OpenDoor();
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const int status = InChild([&] {
    const auto guest = Guest::Join(door, kLong);
    const auto shard = Put(guest->shards(), {5});
    const std::uint64_t id = shard->hold()->id();
    if (::write(pipe[1], &id, sizeof id) != sizeof id) ::_exit(2);
    ::kill(::getpid(), SIGKILL);
  });
  EXPECT_TRUE(WIFSIGNALED(status));
  ::close(pipe[1]);  // a child that died before it wrote is the end of the file, not a wait
  std::uint64_t id = 0;
  ASSERT_EQ(::read(pipe[0], &id, sizeof id), static_cast<ssize_t>(sizeof id));
  EXPECT_TRUE(IsGone(*context, id));
  ::close(pipe[0]);
}

TEST(Guest, CannotLeaveWhatItDoesNotHold) {
  const auto context = Start();
  const auto mine = Put(context->shards(), {1});
  const auto guest = Guest::Join(context->OpenDoor(), kLong);
  EXPECT_THAT(Message([&] {
                guest->Leave(context->NewBasket(), std::vector<std::uint64_t>{mine->hold()->id()});
              }),
              HasSubstr("must hold it"));
}

TEST(Guest, ABasketHasNoShardThatNobodyLeft) {
  const auto context = Start();
  const auto mine = Put(context->shards(), {1});
  EXPECT_THAT(Message([&] { context->EmptyBasket(context->NewBasket(), {mine->hold()->id()}); }),
              HasSubstr("was not left in the basket"));
}

TEST(Guest, ABasketTakesMoreShardsThanTheWordsOfAMessage) {
  const auto context = Start();
  const std::uint64_t basket = context->NewBasket();
  const auto guest = Guest::Join(context->OpenDoor(), kLong);
  const auto shard = Put(guest->shards(), {1});
  const std::vector<std::uint64_t> many(20'000, shard->hold()->id());
  guest->Leave(basket, many);
  EXPECT_EQ(context->EmptyBasket(basket, many).size(), many.size());
  EXPECT_TRUE(Put(context->shards(), {2}));
}

TEST(Guest, WithoutTheSecretNobodyComesIn) {
  const auto context = Start();
  Door door = context->OpenDoor();
  struct stat found {};
  ASSERT_EQ(::stat(door.secret_file.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777U, 0600U);
  const auto wrong = std::filesystem::temp_directory_path() / "orca-wrong-door";
  std::ofstream(wrong) << net::Secret::Random().ToHex();
  ::chmod(wrong.c_str(), 0600);
  door.secret_file = wrong.string();
  EXPECT_THAT(Message([&] { Guest::Join(door, milliseconds(2000)); }), HasSubstr("has ended"));
  std::filesystem::remove(wrong);
  EXPECT_TRUE(Guest::Join(context->OpenDoor(), kLong));
}

TEST(Guest, IsToldWhenTheContextHasEnded) {
  auto context = Start();
  const Door door = context->OpenDoor();
  const auto guest = Guest::Join(door, kLong);
  context->Stop();
  EXPECT_THAT(Message([&] { Put(guest->shards(), {1}); }), HasSubstr("has ended"));
  EXPECT_FALSE(std::filesystem::exists(door.secret_file));
  EXPECT_THAT(Message([&] { Guest::Join(door, milliseconds(500)); }),
              HasSubstr("use the data before stop_orca_context()"));
}

TEST(Guest, AsksTheDriverAndGetsShardsThatItHoldsThen) {
  const auto context = Start();
  const auto guest = Guest::Join(context->OpenDoor(), kLong);
  const auto question = Put(guest->shards(), {4, 5});
  std::jthread driver([&] {
    const auto asked = context->NextQuestion(kLong);
    ASSERT_TRUE(asked);
    std::uint64_t id = 0;
    std::memcpy(&id, asked->parcel.Parts().at(0).data(), sizeof id);
    auto numbers = Read(*data::Shard::Open(data::ShardHold::Take(context->shards(), id)));
    for (std::int64_t& number : numbers) number *= 10;
    const auto answer = Put(context->shards(), numbers);  // dropped as soon as it is sent
    context->Answer(*asked, {.parcel = {}, .shards = {answer->hold()}});
  });
  const std::uint64_t id = question->hold()->id();
  const std::vector<std::span<const std::byte>> parts = {std::as_bytes(std::span(&id, 1))};
  const Reply reply = guest->Ask(Parcel::Pack(parts));
  driver.join();
  EXPECT_EQ(Read(*data::Shard::Open(reply.shards.at(0))), (std::vector<std::int64_t>{40, 50}));
}

TEST(Guest, AQuestionEndsWithTheContext) {
  const auto context = Start();
  const auto guest = Guest::Join(context->OpenDoor(), kLong);
  std::jthread driver([&] {
    EXPECT_TRUE(context->NextQuestion(kLong));
    context->Stop();
  });
  EXPECT_THAT(Message([&] { guest->Ask({}); }), HasSubstr("has ended"));
  driver.join();
  EXPECT_FALSE(context->NextQuestion(milliseconds(0)));
}

TEST(Guest, AnAnswerToAGuestThatHasGoneHoldsNothing) {
  const auto context = Start();
  const Door door = context->OpenDoor();
  const int status = InChild([&] {
    const auto guest = Guest::Join(door, kLong);
    std::jthread asking([&] { guest->Ask({}); });
    std::this_thread::sleep_for(milliseconds(100));
    ::_exit(0);
  });
  EXPECT_TRUE(WIFEXITED(status));
  const auto asked = context->NextQuestion(kLong);
  ASSERT_TRUE(asked);
  std::this_thread::sleep_for(milliseconds(50));
  auto answer = Put(context->shards(), {1});
  const std::uint64_t id = answer->hold()->id();
  context->Answer(*asked, {.parcel = {}, .shards = {answer->hold()}});
  answer.reset();
  EXPECT_TRUE(IsGone(*context, id));
}

TEST(Guest, ManyComeAndGoAtOnce) {
  const auto context = Start();
  const Door door = context->OpenDoor();
  const std::uint64_t basket = context->NewBasket();
  std::vector<std::uint64_t> ids(24);
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto guest = Guest::Join(door, kLong);
      const auto shard = Put(guest->shards(), {static_cast<std::int64_t>(i)});
      ids[i] = shard->hold()->id();
      guest->Leave(basket, std::span(ids).subspan(i, 1));
    });
  }
  threads.clear();
  const auto holds = context->EmptyBasket(basket, ids);
  for (std::size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(Read(*data::Shard::Open(holds[i])), std::vector<std::int64_t>{static_cast<int>(i)});
}

}  // namespace
}  // namespace orca::runtime
