// Agents on other "hosts" (network namespaces) join a driver and run its functions over TCP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "orca/net/secret.h"
#include "orca/runtime/agent.h"
#include "orca/runtime/program.h"
#include "runtime/process.h"
#include "testing/netns.h"
#include "testing/processes.h"
#include "testing/seed.h"

namespace orca {
namespace {

using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr milliseconds kSilence = testing::kSanitized ? milliseconds(2000) : milliseconds(700);

// --- what runs on the workers

std::string Place() {
  std::array<char, 64> text{};
  const ssize_t length = ::readlink("/proc/self/ns/net", text.data(), text.size());
  return std::string(text.data(), static_cast<std::size_t>(length)) + " " +
         std::to_string(LocalRank());
}

double SumOver(int count) {
  std::vector<double> data(static_cast<std::size_t>(count), Rank() + 1.0);
  Group().AllReduce(comm::AsBytes(data), comm::DType::kFloat64);
  return data.back();
}

std::vector<double> Doubled(std::span<const double> values) {
  std::vector<double> result(values.begin(), values.end());
  for (double& value : result) value *= 2;
  return result;
}

void KillOn(int rank) {
  if (Rank() == rank) ::kill(::getpid(), SIGKILL);
  Group().Barrier();
}

using SharedShard = std::shared_ptr<const data::Shard>;

SharedShard PutBytes(const std::shared_ptr<data::ShardHome>& home, std::size_t count, int value) {
  const std::vector<std::byte> bytes(count, static_cast<std::byte>(value));
  const std::vector<data::ColumnSpec> specs{{.name = "b", .dtype = DType::kUInt8}};
  const data::Column column{.values = bytes};
  return data::Shard::Put(home, specs, count, std::span(&column, 1));
}

std::int64_t SumOf(const data::Shard& shard) {
  std::int64_t sum = 0;
  for (const std::byte byte : shard.columns()[0].values) sum += std::to_integer<std::int64_t>(byte);
  return sum;
}

std::int64_t SumShard(SharedShard shard) { return SumOf(*shard); }
SharedShard MakeShard(int count) {
  return PutBytes(Shards(), static_cast<std::size_t>(count), Rank() + 1);
}

void Wait(int time) { std::this_thread::sleep_for(milliseconds(time)); }

// --- help

class JoinTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("ORCA_PEER_TIMEOUT", testing::kSanitized ? "2" : "0.7", 1);
    std::string reason;
    network_ = testing::Network::Create(2, &reason);
    if (!network_) GTEST_SKIP() << reason;
    secret_file_ = NewSecret();
  }
  void TearDown() override {
    if (!network_) return;
    OnHost0([this] { context_.reset(); });
    for (auto& agent : agents_) agent.Wait(std::chrono::seconds(15));
    agents_.clear();
    ::unlink(secret_file_.c_str());
    EXPECT_TRUE(runtime::Children().empty());
  }

  std::string NewSecret() const {
    std::string path = ::testing::TempDir() + "orca-secret-" + std::to_string(::getpid()) + "-" +
                       std::to_string(agents_.size());
    ::unlink(path.c_str());
    std::ofstream(path) << net::Secret::Random().ToHex();
    ::chmod(path.c_str(), 0600);
    return path;
  }
  std::string address() const { return network_->address(0) + ":7700"; }

  void StartAgent(int host, const std::string& secret) {
    agents_.emplace_back([this, host, secret](const testing::Voice& voice) {
      network_->Enter(host);
      try {
        runtime::JoinAsAgent(address(), secret);
        voice.Tell("served");
      } catch (const Error& error) {
        voice.Tell(error.what());
      }
    });
  }
  // The driver's threads must begin in its namespace; a thread of its own goes there.
  void OnHost0(const std::function<void()>& body) const {
    std::jthread([&] {
      network_->Enter(0);
      body();
    }).join();
  }
  ContextOptions Options(int nodes) const {
    ContextOptions options;
    options.nodes = nodes;
    options.address = address();
    options.secret_file = secret_file_;
    options.silence = kSilence;
    options.grace = kSilence;
    options.start_timeout = std::chrono::seconds(30);
    return options;
  }
  void StartBoth() {
    StartAgent(0, secret_file_);
    StartAgent(1, secret_file_);
    OnHost0([this] { context_ = Context::Start(Options(2)); });
  }
  RunError FailureOf(const std::function<void()>& call) const {
    std::optional<RunError> caught;
    try {
      call();
    } catch (const RunError& error) {
      caught = error;
    }
    EXPECT_TRUE(caught);
    return caught.value_or(RunError({}));
  }

  std::unique_ptr<testing::Network> network_;
  std::string secret_file_;
  std::vector<testing::Child> agents_;
  std::unique_ptr<Context> context_;
};

TEST_F(JoinTest, OneJobRunsOnTwoHosts) {
  StartBoth();
  const auto places = orca::Run(*context_, {.workers = 4}, Place);
  EXPECT_NE(places[0].substr(0, places[0].find(' ')), places[2].substr(0, places[2].find(' ')));
  EXPECT_THAT(places[0], HasSubstr(" 0"));
  EXPECT_THAT(places[1], HasSubstr(" 1"));
  EXPECT_THAT(places[2], HasSubstr(" 0"));
  EXPECT_THAT(orca::Run(*context_, {.workers = 4}, SumOver, 100'000), Each(10.0));
  const std::vector<double> values(3'000'000, 1.5);
  EXPECT_THAT(orca::Run(*context_, {.workers = 2}, Doubled, std::span<const double>(values)),
              Each(std::vector<double>(values.size(), 3.0)));
}

TEST_F(JoinTest, F01AWorkerThatDiesElsewhereIsNamedAndReplaced) {
  StartBoth();
  EXPECT_EQ(FailureOf([&] { orca::Run(*context_, {.workers = 4}, KillOn, 3); }).failure().rank, 3);
  EXPECT_THAT(orca::Run(*context_, {.workers = 4}, SumOver, 10), Each(10.0));
}

TEST_F(JoinTest, ShardsAreFetchedFromTheNodeThatHasThem) {
  StartBoth();
  for (const std::size_t count : {std::size_t{100}, std::size_t{20'000'000}}) {
    const auto sum = static_cast<std::int64_t>(count);
    // Of the driver's own, on both nodes, twice: the second time they have it.
    const auto own = PutBytes(context_->shards(), count, 3);
    for (int i = 0; i < 2; ++i)
      EXPECT_THAT(orca::Run(*context_, {.workers = 4}, SumShard, own), Each(3 * sum));
    // Of each node, by the driver and by the other one.
    const auto made = orca::Run(*context_, {.workers = 4}, MakeShard, static_cast<int>(count));
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const std::int64_t expected = sum * (static_cast<std::int64_t>(rank) + 1);
      EXPECT_EQ(SumOf(*made[rank]), expected);
      EXPECT_THAT(orca::Run(*context_, {.workers = 4}, SumShard, made[rank]), Each(expected));
    }
  }
}

TEST_F(JoinTest, F51ALostNodeIsNamedAndTheOthersGoOn) {
  StartBoth();
  const auto made = orca::Run(*context_, {.workers = 4}, MakeShard, 1000);
  std::jthread killer([&] {
    std::this_thread::sleep_for(milliseconds(300));
    agents_[1].Signal(SIGKILL);
  });
  const auto error = FailureOf([&] { orca::Run(*context_, {.workers = 4}, Wait, 60'000); });
  EXPECT_EQ(error.failure().rank % 2, 0);  // the first rank of whichever node joined as that one
  EXPECT_THAT(error.what(), HasSubstr("lost with its node"));
  EXPECT_THAT(orca::Run(*context_, {.workers = 2}, SumOver, 10), Each(3.0));
  // Its shards are gone; the driver has copies of those that it opened, the other node has not.
  EXPECT_EQ(SumOf(*made[2]) % 1000, 0);
  const auto lost = FailureOf([&] {
    for (const auto& shard : made) orca::Run(*context_, {.workers = 2}, SumShard, shard);
  });
  EXPECT_THAT(lost.what(), HasSubstr("is lost"));
}

TEST_F(JoinTest, F11F12OnlyTheSideThatReachesTheDriverGoesOn) {
  StartBoth();
  const auto begin = std::chrono::steady_clock::now();
  std::jthread cutter([&] {
    std::this_thread::sleep_for(milliseconds(300));
    network_->CutIncoming(1);
    network_->CutOutgoing(1);
  });
  const auto error = FailureOf([&] { orca::Run(*context_, {.workers = 4}, Wait, 60'000); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  EXPECT_THAT(error.what(), HasSubstr("no sign of life"));
  EXPECT_EQ(agents_[1].Listen(std::chrono::seconds(15)), "served");  // it stopped by itself
  EXPECT_THAT(orca::Run(*context_, {.workers = 2}, SumOver, 10), Each(3.0));
}

TEST_F(JoinTest, F16AnAgentWithAnotherSecretIsRefused) {
  const std::string other = secret_file_ + "-other";
  std::ofstream(other) << net::Secret::Random().ToHex();
  ::chmod(other.c_str(), 0600);
  StartAgent(0, secret_file_);
  StartAgent(1, other);
  OnHost0([this] {
    ContextOptions options = Options(2);
    options.start_timeout = std::chrono::seconds(2);
    try {
      Context::Start(options);
      ADD_FAILURE() << "a stranger was let in";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kTimeout);
      EXPECT_THAT(error.what(), HasSubstr("1 of 2 agents have joined"));
      EXPECT_THAT(error.what(), HasSubstr("orca agent --join"));
    }
  });
  EXPECT_THAT(*agents_[1].Listen(std::chrono::seconds(15)), HasSubstr("secret"));
  ::unlink(other.c_str());
}

}  // namespace
}  // namespace orca
