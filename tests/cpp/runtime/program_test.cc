// C++ functions on workers of this machine. This program is its own nursery: see main.
#include "orca/runtime/program.h"

#include <dirent.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "orca/core/host.h"
#include "orca/runtime/event_log.h"
#include "runtime/process.h"
#include "testing/cgroup.h"
#include "testing/seed.h"

namespace orca {
namespace {

using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ContextOptions Options(int cores) {
  ContextOptions options;
  options.cores = cores;
  options.agent = ORCA_TEST_AGENT;
  options.silence = std::chrono::milliseconds(1000);
  options.grace = std::chrono::milliseconds(500);
  return options;
}

// --- what runs on the workers

int RankTimesTen() { return Rank() * 10 + WorldSize(); }

double Sum(std::vector<double> values, double scale) {
  return scale * std::accumulate(values.begin(), values.end(), 0.0);
}

double Twice(double x) { return 2 * x; }

double Apply(double (*function)(double), double x) { return function ? function(x) : -x; }

std::uint64_t RowsOf(std::vector<std::shared_ptr<const data::Shard>> shards) {
  std::uint64_t rows = 0;
  for (const auto& shard : shards) rows += shard->rows();
  return rows;
}

std::string Greet(std::string name) { return "hello " + name + " from " + std::to_string(Rank()); }

float Reduced(int count) {
  std::vector<float> data(static_cast<std::size_t>(count), static_cast<float>(Rank() + 1));
  Group().AllReduce(comm::AsBytes(data), comm::DType::kFloat32);
  return data.back();
}

std::uint64_t SumOf(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0;
  for (const std::byte byte : bytes) sum += static_cast<std::uint64_t>(byte);
  return sum;
}

int LateReduced(int milliseconds_late) {
  if (Rank() != 0) std::this_thread::sleep_for(milliseconds(milliseconds_late));
  std::vector<std::int32_t> one(1, 1);
  Group().AllReduce(comm::AsBytes(one), comm::DType::kInt32);
  return one[0];
}

int Pid() { return ::getpid(); }

void ThrowOn(int rank) {
  if (Rank() == rank) throw std::out_of_range("row 12 is beyond 10");
  Group().Barrier();
}

void SignalOn(int rank, int signal) {
  if (Rank() == rank) ::kill(::getpid(), signal);
  Group().Barrier();
}

void LeaveOn(int rank, int code) {
  if (Rank() == rank) ::_exit(code);
  Group().Barrier();
}

// The rank dies in the first attempt only: the file remembers.
int DieOnce(std::string file, int rank) {
  if (Rank() == rank && ::access(file.c_str(), F_OK) != 0) {
    std::ofstream(file) << "died";
    ::kill(::getpid(), SIGKILL);
  }
  Group().Barrier();
  return WorldSize() * 1'000'000 + ::getpid() % 1'000'000;
}

void Sleep(int time) { std::this_thread::sleep_for(milliseconds(time)); }

void LateOn(int rank, int time) {
  Group().Barrier();
  if (Rank() == rank) Sleep(time);
  Group().Barrier();
}

void ReportSteps(int count) {
  for (int step = 1; step <= count; ++step) {
    Report(static_cast<std::uint64_t>(step), {{"loss", 1.0 / step}});
    Sleep(1);
  }
}

void Print(std::string text) { std::printf("%s %d\n", text.c_str(), Rank()); }

void ForkAndDie() {
  if (::fork() == 0) {
    for (;;) ::pause();
  }
  ::kill(::getpid(), SIGKILL);
}

/// Pages that a step maps whose memory is that of the steps before it.
int PagesOfAStep() {
  const auto faults = [] {
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    return used.ru_minflt;
  };
  long before = 0;
  for (int step = 0; step < 4; ++step) {
    before = faults();
    std::vector<std::unique_ptr<char[]>> blocks;
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(std::make_unique_for_overwrite<char[]>(20 << 20));
      for (std::size_t at = 0; at < 20 << 20; at += 4096)
        static_cast<volatile char*>(blocks.back().get())[at] = 1;
    }
  }
  return static_cast<int>(faults() - before);
}

using SharedShard = std::shared_ptr<const data::Shard>;

SharedShard PutNumbers(const std::shared_ptr<data::ShardHome>& home, std::int64_t first,
                       std::size_t count) {
  std::vector<std::int64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  const std::vector<data::ColumnSpec> specs{{.name = "n", .dtype = DType::kInt64}};
  const data::Column column{.values = std::as_bytes(std::span(numbers))};
  return data::Shard::Put(home, specs, count, std::span(&column, 1));
}

std::int64_t SumOfShard(const data::Shard& shard) {
  std::int64_t sum = 0;
  for (std::uint64_t row = 0; row < shard.rows(); ++row) {
    std::int64_t number = 0;
    std::memcpy(&number, shard.columns()[0].values.data() + row * sizeof number, sizeof number);
    sum += number;
  }
  return sum;
}

std::int64_t SumShard(SharedShard shard) { return SumOfShard(*shard); }

SharedShard MakeShard(int count) {
  return PutNumbers(Shards(), Rank(), static_cast<std::size_t>(count));
}

SharedShard PassOn(SharedShard shard) { return shard; }

void DieWithShards(int count) {
  const auto first = MakeShard(count);
  const auto second = MakeShard(count);
  ::kill(::getpid(), SIGKILL);
}

std::string TryToPut(int count) {
  try {
    MakeShard(count);
    return "there was room";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string OpenNumber(std::int64_t id) {
  try {
    data::Shard::Open(data::ShardHold::Take(Shards(), static_cast<std::uint64_t>(id)));
    return "it was there";
  } catch (const Error& error) {
    return error.what();
  }
}

// --- help

// How many pieces of memory for shards a process has.
std::size_t ShardFiles(pid_t pid) {
  std::size_t count = 0;
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry, gone).string();
    count += target.find("orca-shard") != std::string::npos ? 1 : 0;
  }
  return count;
}

RunError FailureOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const RunError& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return RunError({});
}

std::size_t OpenDescriptors() {
  std::size_t count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override { descriptors_ = OpenDescriptors(); }
  // No residue (O5): neither processes nor descriptors.
  void TearDown() override {
    context_.reset();
    EXPECT_TRUE(runtime::Children().empty());
    EXPECT_EQ(OpenDescriptors(), descriptors_);
  }
  void Start(int cores) { context_ = Context::Start(Options(cores)); }
  std::shared_ptr<runtime::Run> SubmitSleep(int time) {
    const program::Packed argument = program::Coder<int>::Pack(time);
    return program::Submit(*context_, {}, reinterpret_cast<void (*)()>(&Sleep),
                           &program::CallPacked<void, int>, std::span(&argument, 1));
  }

  std::unique_ptr<Context> context_;

 private:
  std::size_t descriptors_ = 0;
};

TEST_F(ProgramTest, ResultsComeInTheOrderOfRanks) {
  Start(3);
  EXPECT_THAT(orca::Run(*context_, {.workers = 3}, RankTimesTen), ElementsAre(3, 13, 23));
  EXPECT_THAT(orca::Run(*context_, {}, RankTimesTen), ElementsAre(3, 13, 23));
  EXPECT_THAT(orca::Run(*context_, {.workers = 1}, RankTimesTen), ElementsAre(1));
  EXPECT_THAT(orca::Run(*context_, {.workers = 5}, RankTimesTen), ElementsAre(5, 15, 25, 35, 45));
}

TEST_F(ProgramTest, ArgumentsOfEveryKindTravel) {
  Start(2);
  EXPECT_THAT(orca::Run(*context_, {}, Sum, std::vector<double>{1, 2, 3.5}, 2.0),
              ElementsAre(13.0, 13.0));
  EXPECT_THAT(orca::Run(*context_, {}, Greet, "Ada"),
              ElementsAre("hello Ada from 0", "hello Ada from 1"));
  const std::vector<std::byte> bytes(20 << 20, std::byte{3});
  EXPECT_THAT(orca::Run(*context_, {}, SumOf, std::span<const std::byte>(bytes)),
              Each(3U * bytes.size()));
}

TEST_F(ProgramTest, FunctionsAndListsOfShardsTravel) {
  Start(2);
  EXPECT_THAT(orca::Run(*context_, {.workers = 2}, Apply, Twice, 4.0), Each(8.0));
  EXPECT_THAT(orca::Run(*context_, {.workers = 1}, Apply, nullptr, 4.0), Each(-4.0));
  const std::vector<SharedShard> shards{PutNumbers(context_->shards(), 0, 3),
                                        PutNumbers(context_->shards(), 0, 4)};
  EXPECT_THAT(orca::Run(*context_, {.workers = 2}, RowsOf, shards), Each(7U));
}

TEST_F(ProgramTest, WorkersStayWarmAndKeepTheirGroup) {
  Start(2);
  const auto pids = orca::Run(*context_, {}, Pid);
  for (int i = 1; i < 20; ++i) EXPECT_THAT(orca::Run(*context_, {}, Reduced, i), Each(3.0F));
  EXPECT_EQ(orca::Run(*context_, {}, Pid), pids);
}

// The thread sanitizer finds here that a group which ends and one that forms take locks in two
// orders.
TEST_F(ProgramTest, MemoryThatAStepFreesIsThereForTheNext) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers have an allocator of their own";
  Start(1);
  EXPECT_LT(orca::Run(*context_, {}, PagesOfAStep)[0], 100);  // Of 20,480.
}

TEST_F(ProgramTest, AGroupFormsAnewWhileSomebodyIsLate) {
  Start(2);
  for (const int world : {2, 3, 2, 3})
    EXPECT_THAT(orca::Run(*context_, {.workers = world}, LateReduced, 60), Each(world));
}

TEST_F(ProgramTest, F34AnExceptionNamesItsRankAndStopsTheOthers) {
  Start(3);
  const auto error = FailureOf([&] { orca::Run(*context_, {}, ThrowOn, 1); });
  EXPECT_EQ(error.failure().rank, 1);
  EXPECT_EQ(error.failure().type, "std::out_of_range");
  EXPECT_THAT(error.what(), HasSubstr("rank 1"));
  EXPECT_THAT(error.what(), HasSubstr("row 12 is beyond 10"));
  EXPECT_THAT(orca::Run(*context_, {}, Reduced, 3), Each(6.0F));
}

TEST_F(ProgramTest, F01F02ASignalIsNamedWithItsRank) {
  Start(3);
  for (const auto& [signal, name] :
       std::vector<std::pair<int, std::string>>{{SIGKILL, "SIGKILL"},
                                                {SIGSEGV, "SIGSEGV"},
                                                {SIGABRT, "SIGABRT"},
                                                {SIGTERM, "SIGTERM"}}) {
    if (testing::kSanitized && signal == SIGSEGV) continue;  // the sanitizer turns it into an exit
    const auto error = FailureOf([&] { orca::Run(*context_, {}, SignalOn, 2, signal); });
    EXPECT_EQ(error.failure().rank, 2) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("(" + name + ")"));
  }
  EXPECT_THAT(orca::Run(*context_, {}, Reduced, 3), Each(6.0F));
}

TEST_F(ProgramTest, F03LeavingEarlyIsAFailure) {
  Start(2);
  const auto error = FailureOf([&] { orca::Run(*context_, {}, LeaveOn, 0, 0); });
  EXPECT_EQ(error.failure().rank, 0);
  EXPECT_THAT(error.what(), HasSubstr("exit code 0 before its function returned"));
  EXPECT_THAT(FailureOf([&] { orca::Run(*context_, {}, LeaveOn, 1, 42); }).what(),
              HasSubstr("exit code 42"));
}

TEST_F(ProgramTest, F05AStoppedWorkerIsNoticedAndNamed) {
  Start(2);
  const auto begin = std::chrono::steady_clock::now();
  const auto error = FailureOf([&] { orca::Run(*context_, {}, SignalOn, 1, SIGSTOP); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  EXPECT_EQ(error.failure().rank, 1) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("the process was stopped"));
  EXPECT_THAT(orca::Run(*context_, {}, Reduced, 3), Each(3.0F));
}

TEST_F(ProgramTest, ADeadWorkerIsReplacedAndTheSurvivorsKeepTheirProcesses) {
  Start(3);
  const auto before = orca::Run(*context_, {}, Pid);
  const std::string file = ::testing::TempDir() + "orca-died-" + std::to_string(::getpid());
  const auto after = orca::Run(*context_, {.on_failure = OnFailure::kRestart}, DieOnce, file, 1);
  ::unlink(file.c_str());
  ASSERT_EQ(after.size(), 3U);
  EXPECT_EQ(after[0], 3'000'000 + before[0] % 1'000'000);
  EXPECT_NE(after[1], 3'000'000 + before[1] % 1'000'000);
  EXPECT_EQ(after[2], 3'000'000 + before[2] % 1'000'000);
}

TEST_F(ProgramTest, AGroupCanShrink) {
  Start(3);
  const std::string file = ::testing::TempDir() + "orca-shrunk-" + std::to_string(::getpid());
  const auto after = orca::Run(*context_, {.on_failure = OnFailure::kShrink}, DieOnce, file, 1);
  ::unlink(file.c_str());
  ASSERT_EQ(after.size(), 2U);
  EXPECT_EQ(after[0] / 1'000'000, 2);
}

TEST_F(ProgramTest, RestartsEndAfterSoMany) {
  Start(2);
  const auto error = FailureOf([&] {
    orca::Run(*context_, {.on_failure = OnFailure::kRestart, .max_restarts = 2}, LeaveOn, 0, 9);
  });
  EXPECT_THAT(error.what(), HasSubstr("exit code 9"));
}

TEST_F(ProgramTest, AnExceptionIsNeverRetried) {
  Start(2);
  const auto error =
      FailureOf([&] { orca::Run(*context_, {.on_failure = OnFailure::kRestart}, ThrowOn, 0); });
  EXPECT_EQ(error.failure().rank, 0);
}

TEST_F(ProgramTest, WhatDoesNotStopWhenCancelledIsKilled) {
  Start(1);
  const auto run = SubmitSleep(3'600'000);
  EXPECT_FALSE(run->Wait(std::chrono::milliseconds(100)));
  run->Cancel("it is no longer wanted");
  ASSERT_TRUE(run->Wait(std::chrono::seconds(5)));
  EXPECT_TRUE(run->failure()->cancelled);
  EXPECT_THAT(orca::Run(*context_, {}, RankTimesTen), ElementsAre(1));
}

TEST_F(ProgramTest, CallsThatDoNotFitWaitForOneAnother) {
  Start(2);
  std::vector<std::jthread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto results = orca::Run(*context_, {.workers = 2}, Reduced, 4);
      right += results == std::vector<float>{3.0F, 3.0F} ? 1 : 0;
    });
  }
  threads.clear();
  EXPECT_EQ(right, 8);
}

TEST_F(ProgramTest, WhatAWorkerPrintsReachesTheDriverWithItsRank) {
  Start(2);
  ::testing::internal::CaptureStdout();
  orca::Run(*context_, {}, Print, "line");
  context_.reset();
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(text, HasSubstr("[rank 0] line 0\n"));
  EXPECT_THAT(text, HasSubstr("[rank 1] line 1\n"));
}

TEST_F(ProgramTest, StacksShowWhereAFunctionIs) {
  Start(1);
  ::testing::internal::CaptureStderr();
  const auto run = SubmitSleep(1000);
  EXPECT_FALSE(run->Wait(std::chrono::milliseconds(300)));
  context_->PrintStacks();
  ASSERT_TRUE(run->Wait(std::chrono::seconds(20)));
  EXPECT_FALSE(run->failure());  // it went on as if nothing had happened
  context_.reset();
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("[rank 0] native stack"));
  EXPECT_THAT(text, HasSubstr("runtime_tests"));
}

TEST_F(ProgramTest, F33F35AStallShowsWhoWaitsForWhomAndAllStacks) {
  ::setenv("ORCA_WARN_AFTER", "0.1", 1);
  Start(2);
  ::testing::internal::CaptureStderr();
  orca::Run(*context_, {}, LateOn, 0, 1500);
  context_.reset();
  ::unsetenv("ORCA_WARN_AFTER");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("waits in barrier"));
  EXPECT_THAT(text, HasSubstr("for rank 0"));
  EXPECT_THAT(text, HasSubstr("[rank 0] native stack"));
  EXPECT_THAT(text, HasSubstr("[rank 1] native stack"));
}

TEST_F(ProgramTest, IdleWorkersBeyondTheCoresLeaveAfterAWhile) {
  ContextOptions options = Options(1);
  options.silence = std::chrono::milliseconds(1000);
  options.idle = std::chrono::milliseconds(100);
  context_ = Context::Start(options);
  const auto pids = orca::Run(*context_, {.workers = 4}, Pid);
  const auto alive = [&] {
    return std::ranges::count_if(pids, [](int pid) { return ::kill(pid, 0) == 0; });
  };
  EXPECT_EQ(alive(), 4);
  for (int i = 0; i < 200 && alive() > 1; ++i) std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(alive(), 1);
  const auto kept = std::ranges::find_if(pids, [](int pid) { return ::kill(pid, 0) == 0; });
  ASSERT_NE(kept, pids.end());
  EXPECT_EQ(orca::Run(*context_, {.workers = 1}, Pid).front(), *kept);
  EXPECT_THAT(orca::Run(*context_, {.workers = 4}, Reduced, 3), Each(10.0F));
}

TEST_F(ProgramTest, ChildrenOfADeadWorkerAreEndedWithIt) {
  Start(1);
  FailureOf([&] { orca::Run(*context_, {}, ForkAndDie); });
}

TEST_F(ProgramTest, F51ALostAgentIsNamedAndCallsEnd) {
  Start(2);
  const auto run = SubmitSleep(3'600'000);
  EXPECT_FALSE(run->Wait(std::chrono::milliseconds(100)));
  const auto children = runtime::Children();
  ASSERT_EQ(children.size(), 1U);
  ::kill(children[0], SIGKILL);
  ASSERT_TRUE(run->Wait(std::chrono::seconds(5)));
  EXPECT_THAT(run->failure()->text, HasSubstr("agent"));
  EXPECT_THAT(run->failure()->text, HasSubstr("SIGKILL"));
  EXPECT_THROW(orca::Run(*context_, {}, Pid), RunError);
}

TEST_F(ProgramTest, F51AStoppedAgentIsNoticedAndNamed) {
  Start(1);
  const auto children = runtime::Children();
  ASSERT_EQ(children.size(), 1U);
  ::kill(children[0], SIGSTOP);
  const auto error = FailureOf([&] { orca::Run(*context_, {}, Pid); });
  EXPECT_THAT(error.what(), HasSubstr("the process was stopped"));
}

TEST_F(ProgramTest, F29AProcessThatCannotBeForkedIsAnErrorThatNamesTheLimit) {
  const auto group = testing::Cgroup::Create("pids", "pids.max", 1);
  if (!group) GTEST_SKIP();
  Start(2);
  orca::Run(*context_, {.workers = 1}, Pid);
  const pid_t agent = runtime::Children().at(0);
  pid_t nursery = 0;  // The first child; the worker came later.
  std::ifstream(fmt::format("/proc/{0}/task/{0}/children", agent)) >> nursery;
  std::ofstream(group->path() + "/cgroup.procs") << nursery << std::flush;
  const auto error = FailureOf([&] { orca::Run(*context_, {.workers = 2}, Pid); });
  EXPECT_THAT(error.what(), HasSubstr("was not born: cannot fork: no more processes or threads"));
  EXPECT_THAT(error.what(), HasSubstr(fmt::format("/orca-test-{} is 1 (1 used)", ::getpid())));
  std::ofstream(group->path() + "/pids.max") << 100 << std::flush;
  EXPECT_EQ(orca::Run(*context_, {.workers = 2}, Pid).size(), 2U);
  context_.reset();  // The group must be empty.
}

TEST_F(ProgramTest, BadRequestsSayWhatIsPossible) {
  ContextOptions options = Options(-1);
  EXPECT_THROW(Context::Start(options), Error);
  options = Options(1);
  options.agent = "/no/such/orca";
  try {
    Context::Start(options);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("/no/such/orca"));
  }
  Start(1);
  EXPECT_THROW(orca::Run(*context_, {.workers = -1}, Pid), Error);
  EXPECT_THROW(orca::Run(*context_, {.threads = -1}, Pid), Error);
  try {
    orca::Run(*context_, {.workers = 5}, Pid);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.what(),
                HasSubstr("5 workers are more than 4 per core (1 core); give at most 4"));
  }
  EXPECT_EQ(orca::Run(*context_, {.workers = 5, .oversubscribe = true}, RankTimesTen).size(), 5U);
  context_->Stop();
  EXPECT_THROW(orca::Run(*context_, {}, Pid), Error);
}

TEST(ProgramAloneTest, OutsideOfRunAProgramIsAGroupOfOne) {
  EXPECT_EQ(Rank(), 0);
  EXPECT_EQ(WorldSize(), 1);
  EXPECT_EQ(Reduced(3), 1.0F);
}

TEST_F(ProgramTest, StepsAreInTheLogTenASecondAndTheLastOne) {
  Start(2);
  constexpr int kSteps = 300;
  const auto begin = std::chrono::steady_clock::now();
  orca::Run(*context_, {.workers = 2}, ReportSteps, kSteps);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  Report(1);  // outside of a run
  runtime::EventReader reader(runtime::ListRuns().back().path / "events.log");
  std::map<int, std::vector<double>> steps;
  while (const auto record = reader.Next()) {
    if (record->what != "step") continue;
    EXPECT_DOUBLE_EQ(record->numbers.at("loss"), 1.0 / record->numbers.at("step"));
    steps[record->rank].push_back(record->numbers.at("step"));
  }
  ASSERT_EQ(steps.size(), 2U);
  for (const auto& [rank, seen] : steps) {
    EXPECT_TRUE(std::ranges::is_sorted(seen));
    EXPECT_EQ(seen.front(), 1);
    EXPECT_EQ(seen.back(), kSteps);
    EXPECT_LE(static_cast<double>(seen.size()), 10 * seconds + 2);
  }
}

TEST_F(ProgramTest, ShardsTravelByNumber) {
  Start(2);
  const auto shard = PutNumbers(context_->shards(), 1, 1'000'000);
  EXPECT_THAT(orca::Run(*context_, {.workers = 4}, SumShard, shard),
              Each(std::int64_t{1'000'000} * 1'000'001 / 2));
  const auto made = orca::Run(*context_, {.workers = 3}, MakeShard, 1000);
  for (std::size_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(SumOfShard(*made[rank]), 999 * 500 + static_cast<std::int64_t>(rank) * 1000);
  // What a worker made, another one reads; and back again.
  EXPECT_THAT(orca::Run(*context_, {.workers = 4}, SumShard, made[2]), Each(999 * 500 + 2000));
  const auto back = orca::Run(*context_, {.workers = 2}, PassOn, made[1]);
  EXPECT_EQ(SumOfShard(*back[1]), 999 * 500 + 1000);
}

TEST_F(ProgramTest, ShardsOutliveTheirMakersAndTheContext) {
  Start(1);
  const auto made = orca::Run(*context_, {.workers = 1}, MakeShard, 5000);
  EXPECT_THROW(orca::Run(*context_, {.workers = 1}, SignalOn, 0, SIGKILL), RunError);
  EXPECT_THAT(orca::Run(*context_, {.workers = 1}, SumShard, made[0]), Each(4999 * 2500));
  context_.reset();
  EXPECT_EQ(SumOfShard(*made[0]), 4999 * 2500);
}

// O5: memory that nobody holds is used again, and none is lost with a worker.
TEST_F(ProgramTest, MemoryOfShardsComesBack) {
  Start(2);
  for (int i = 0; i < 20; ++i) {
    const auto made = orca::Run(*context_, {.workers = 2}, MakeShard, 50'000);
    (void)PutNumbers(context_->shards(), 0, 50'000);
  }
  const pid_t agent = runtime::Children().front();
  EXPECT_LE(ShardFiles(agent), 6U);
  for (int i = 0; i < 5; ++i)
    EXPECT_THROW(orca::Run(*context_, {.workers = 2}, DieWithShards, 50'000), RunError);
  (void)PutNumbers(context_->shards(), 0, 50'000);
  EXPECT_LE(ShardFiles(agent), 10U);
}

TEST_F(ProgramTest, ShardsBeyondTheContextsMemoryAreFiles) {
  ContextOptions options = Options(1);
  options.memory = std::size_t{64} << 20;
  ::setenv("ORCA_SPILL", ".", 1);
  context_ = Context::Start(options);
  ::unsetenv("ORCA_SPILL");
  const auto made = orca::Run(*context_, {.workers = 1}, MakeShard, 10'000'000)[0];
  EXPECT_TRUE(made->in_file());
  EXPECT_THAT(orca::Run(*context_, {.workers = 2}, SumShard, made),
              Each(std::int64_t{9'999'999} * 5'000'000));
}

TEST_F(ProgramTest, ShardsThatFitNowhereAreRefusedByName) {
  ContextOptions options = Options(1);
  options.memory = std::size_t{64} << 20;
  ::setenv("ORCA_SPILL", "/dev/shm", 1);  // is memory itself
  context_ = Context::Start(options);
  ::unsetenv("ORCA_SPILL");
  EXPECT_THAT(orca::Run(*context_, {.workers = 1}, TryToPut, 10'000'000),
              Each(HasSubstr("64.0 MiB for shards")));
  EXPECT_THROW(PutNumbers(context_->shards(), 0, 10'000'000), Error);
  EXPECT_THAT(orca::Run(*context_, {.workers = 1}, TryToPut, 1'000'000), Each("there was room"));
  EXPECT_THAT(orca::Run(*context_, {.workers = 1}, OpenNumber, 12345),
              Each(HasSubstr("shard 12345 is not here")));
}

TEST_F(ProgramTest, AShardThatIsNotInTheContextIsRefused) {
  Start(1);
  const auto shard = PutNumbers(data::ShardShelf::Create(), 0, 10);
  EXPECT_THROW(orca::Run(*context_, {.workers = 1}, SumShard, shard), Error);
  const auto home = context_->shards();
  context_.reset();
  EXPECT_THROW(PutNumbers(home, 0, 10), Error);
}

}  // namespace
}  // namespace orca
