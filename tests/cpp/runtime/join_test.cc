// Agents on other "hosts" (network namespaces) join a driver and run its functions over TCP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "orca/net/secret.h"
#include "orca/runtime/agent.h"
#include "orca/runtime/program.h"
#include "runtime/process.h"
#include "testing/mutant.h"
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

int Pid() { return ::getpid(); }

void KillOn(int rank) {
  if (Rank() == rank) ::kill(::getpid(), SIGKILL);
  Group().Barrier();
}

// Reduces until the network fails; another attempt reduces once.
std::string ReduceForLong() {
  for (int i = 0; i < 6000 && Attempt() == 0; ++i) {
    SumOver(1000);
    std::this_thread::sleep_for(milliseconds(10));
  }
  return std::to_string(Attempt()) + " " + std::to_string(static_cast<int>(SumOver(10)));
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

void ReturnEarly(int rank) {
  Group().Barrier();
  if (Rank() != rank) Group().Barrier();
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
  void StartBoth(milliseconds silence = kSilence) {
    StartAgent(0, secret_file_);
    StartAgent(1, secret_file_);
    OnHost0([this, silence] {
      ContextOptions options = Options(2);
      options.silence = silence;
      context_ = Context::Start(options);
    });
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

TEST_F(JoinTest, F33ARankOfAnotherHostThatHasReturnedIsNotWaitedFor) {
  StartBoth();
  const auto error = FailureOf([&] { orca::Run(*context_, {.workers = 4}, ReturnEarly, 3); });
  EXPECT_THAT(error.what(), HasSubstr("rank 3 ("));
  EXPECT_THAT(error.what(), HasSubstr(" has returned, while rank "));
  EXPECT_THAT(error.what(), HasSubstr(" waits in barrier #2 for it"));
  EXPECT_THAT(orca::Run(*context_, {.workers = 4}, SumOver, 10), Each(10.0));
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
  EXPECT_THAT(error.what(), HasSubstr(") is lost: the connection broke: "));
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

enum class Cut { kBothWays, kIncoming, kOutgoing };

class CutTest : public JoinTest, public ::testing::WithParamInterface<Cut> {
 protected:
  // Cuts the second host off while a call runs; the first one has the driver.
  void CutSoon(Cut way) {
    cutter_ = std::jthread([this, way] {
      std::this_thread::sleep_for(milliseconds(500));
      if (way != Cut::kOutgoing) network_->CutIncoming(1);
      if (way != Cut::kIncoming) network_->CutOutgoing(1);
    });
  }
  // The ranks of four that are on the second host.
  std::vector<int> RanksThere() {
    std::string there;
    std::jthread([&] {
      network_->Enter(1);
      there = std::filesystem::read_symlink("/proc/thread-self/ns/net").string() + " ";
    }).join();
    std::vector<int> ranks;
    const auto places = orca::Run(*context_, {.workers = 4}, Place);
    for (int rank = 0; rank < 4; ++rank)
      if (places[static_cast<std::size_t>(rank)].starts_with(there)) ranks.push_back(rank);
    return ranks;
  }
  void ExpectThatTheHostThatIsCutOffIsBlamed(Cut way) {
    StartBoth();
    const std::vector<int> there = RanksThere();
    ASSERT_EQ(there.size(), 2U);
    CutSoon(way);
    const auto error = FailureOf([&] { orca::Run(*context_, {.workers = 4}, ReduceForLong); });
    EXPECT_THAT(there, ::testing::Contains(error.failure().rank)) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("lost with its node"));
    EXPECT_THAT(error.what(), HasSubstr("no sign of life"));
    EXPECT_EQ(agents_[1].Listen(std::chrono::seconds(15)), "served");  // it stopped by itself
    EXPECT_THAT(orca::Run(*context_, {.workers = 2}, SumOver, 10), Each(3.0));
    OnHost0([this] { context_.reset(); });
  }

 private:
  std::jthread cutter_;
};

std::string NameOf(const ::testing::TestParamInfo<Cut>& tried) {
  return tried.param == Cut::kBothWays   ? "BothWays"
         : tried.param == Cut::kIncoming ? "Incoming"
                                         : "Outgoing";
}

// The ways differ in what the network drops, not in the threads and memory that sanitizers look at.
std::vector<Cut> Ways() {
  if (testing::kSanitized) return {Cut::kOutgoing};
  return {Cut::kBothWays, Cut::kIncoming, Cut::kOutgoing};
}

INSTANTIATE_TEST_SUITE_P(Ways, CutTest, ::testing::ValuesIn(Ways()), NameOf);

TEST_P(CutTest, F11F12ACutInAllReduceBlamesTheHostThatIsCutOff) {
  ExpectThatTheHostThatIsCutOffIsBlamed(GetParam());
}

using CutMutantTest = CutTest;
INSTANTIATE_TEST_SUITE_P(Ways, CutMutantTest, ::testing::Values(Cut::kBothWays), NameOf);

TEST_P(CutMutantTest, F11ThatAnEchoDoesNotWaitForASilentHostIsNoticed) {
  if (testing::kSanitized) GTEST_SKIP() << "mutants are in the release build";
  EXPECT_TRUE(testing::IsNoticed("silent-node",
                                 [this] { ExpectThatTheHostThatIsCutOffIsBlamed(GetParam()); }));
}

TEST_P(CutTest, F11F12ACutInAllReduceIsARestartOnTheHostThatIsLeft) {
  StartBoth();
  CutSoon(GetParam());
  const RunOptions options{.workers = 4, .on_failure = OnFailure::kRestart, .max_restarts = 1};
  EXPECT_THAT(orca::Run(*context_, options, ReduceForLong), Each("1 10"));
}

TEST_P(CutTest, F11F12AGroupShrinksToTheHostThatIsLeft) {
  StartBoth();
  CutSoon(GetParam());
  const RunOptions options{.workers = 4, .on_failure = OnFailure::kShrink};
  const auto found = orca::Run(*context_, options, ReduceForLong);
  EXPECT_THAT(found, ::testing::ElementsAre("1 3", "1 3"));
}

TEST_F(JoinTest, F10ACutThatHealsInTimeIsARestartOfTheSameProcesses) {
  StartBoth(3 * kSilence);  // The agents' time is twice that.
  const auto before = orca::Run(*context_, {.workers = 4}, Pid);
  std::jthread cutter([&] {
    std::this_thread::sleep_for(milliseconds(500));
    network_->CutIncoming(1);
    std::this_thread::sleep_for(kSilence * 5 / 2);  // What the ranks wait, and more.
    network_->Run(1, "nft delete table inet cut");
  });
  const RunOptions options{.workers = 4, .on_failure = OnFailure::kRestart, .max_restarts = 1};
  EXPECT_THAT(orca::Run(*context_, options, ReduceForLong), Each("1 10"));
  EXPECT_EQ(orca::Run(*context_, {.workers = 4}, Pid), before);
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
