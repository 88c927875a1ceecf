// Random deaths and stops of native workers: no hang, no residue, and the guilty rank is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "orca/runtime/program.h"
#include "runtime/process.h"
#include "testing/seed.h"

namespace orca {
namespace {

using std::chrono::milliseconds;

constexpr int kUsualSchedules = testing::kSanitized ? 60 : 150;
constexpr int kSchedulesAContext = 25;
constexpr milliseconds kSilence(500);

/// What happens to whom, and when.
struct Schedule {
  int world = 1;
  int victim = -1;  // -1: nobody
  int signal = SIGKILL;
  int micros = 0;  // after its function began; -1: before
  OnFailure policy = OnFailure::kRaise;
};

Schedule Draw(std::mt19937_64& random) {
  constexpr std::array kSignals = {SIGKILL, SIGKILL, SIGKILL, SIGSEGV, SIGABRT, SIGTERM, SIGBUS};
  Schedule schedule;
  schedule.world = 1 + static_cast<int>(random() % 4);
  if (random() % 10 != 0) schedule.victim = static_cast<int>(random() % schedule.world);
  schedule.signal = random() % 12 == 0 ? SIGSTOP : kSignals[random() % kSignals.size()];
  schedule.micros = random() % 8 == 0 ? -1 : static_cast<int>(random() % 6000);
  const auto policy = random() % 3;
  schedule.policy = policy == 0   ? OnFailure::kRaise
                    : policy == 1 ? OnFailure::kRestart
                                  : OnFailure::kShrink;
  return schedule;
}

std::string Name(const Schedule& schedule) {
  return "world " + std::to_string(schedule.world) + ", victim " + std::to_string(schedule.victim) +
         ", signal " + std::to_string(schedule.signal) + ", after " +
         std::to_string(schedule.micros) + " us, policy " +
         std::to_string(static_cast<int>(schedule.policy));
}

// Sums in a loop for some milliseconds. The victim signals itself at its time, in the first attempt
// only: `mark` is a file that remembers.
double Steps(int victim, int signal, int micros, std::string mark) {
  std::optional<std::jthread> fate;
  if (Rank() == victim && ::access(mark.c_str(), F_OK) != 0) {
    std::ofstream(mark) << "x";
    // A sanitizer's own handler may hang where the signal meets it, and leaves with a status.
    if (signal != SIGKILL && signal != SIGSTOP) std::signal(signal, SIG_DFL);
    if (micros < 0) ::kill(::getpid(), signal);
    fate.emplace([=] {
      std::this_thread::sleep_for(std::chrono::microseconds(micros));
      ::kill(::getpid(), signal);
    });
  }
  const int world = WorldSize();
  std::vector<double> data(1000);
  double sum = 0;
  for (int step = 0; step < 40; ++step) {
    data.assign(data.size(), Rank() + 1.0 + step);
    Group().AllReduce(comm::AsBytes(data), comm::DType::kFloat64);
    const double expected = world * (world + 1) / 2.0 + world * step;
    if (data.front() != expected || data.back() != expected)
      throw Error(Code::kInternal, "a wrong sum");
    sum += data[0];
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return sum;
}

std::unique_ptr<Context> NewContext() {
  ContextOptions options;
  options.cores = 2;
  options.agent = ORCA_TEST_AGENT;
  options.silence = kSilence * (testing::kSanitized ? 4 : 1);
  options.grace = kSilence;
  return Context::Start(options);
}

void RunOne(Context& context, const Schedule& schedule, const std::string& mark) {
  SCOPED_TRACE(Name(schedule));
  const auto begin = std::chrono::steady_clock::now();
  try {
    const auto results =
        orca::Run(context, {.workers = schedule.world, .on_failure = schedule.policy}, Steps,
                  schedule.victim, schedule.signal, schedule.micros, mark);
    // It may have ended before its fate came; otherwise somebody took over.
    for (const double sum : results) EXPECT_EQ(sum, results[0]);
    EXPECT_LE(static_cast<int>(results.size()), schedule.world);
    EXPECT_GE(static_cast<int>(results.size()), std::max(1, schedule.world - 1));
  } catch (const RunError& error) {
    std::string what = error.what();
    for (const std::string& other : error.failure().others) what += "\n  " + other;
    EXPECT_EQ(error.failure().rank, schedule.victim) << what;
    EXPECT_TRUE(schedule.policy == OnFailure::kRaise ||
                (schedule.policy == OnFailure::kShrink && schedule.world == 1))
        << what;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(ChaosTest, F01F05F20EveryScheduleEndsAndNamesTheGuilty) {
  ::setenv("ORCA_PEER_TIMEOUT", testing::kSanitized ? "2" : "0.5", 1);
  const std::string mark = ::testing::TempDir() + "orca-chaos-" + std::to_string(::getpid());
  std::unique_ptr<Context> context;
  const int schedules = testing::TestSchedules(kUsualSchedules);
  for (int i = 0; i < schedules && !::testing::Test::HasFailure(); ++i) {
    const std::uint64_t seed = testing::TestSeed() + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("ORCA_SCHEDULES=1 ORCA_TEST_SEED=" + std::to_string(seed) + " repeats it");
    std::mt19937_64 random(seed);
    if (i % kSchedulesAContext == 0) {
      context.reset();
      EXPECT_TRUE(runtime::Children().empty());
      context = NewContext();
    }
    ::unlink(mark.c_str());
    RunOne(*context, Draw(random), mark);
  }
  ::unlink(mark.c_str());
  context.reset();
  EXPECT_TRUE(runtime::Children().empty());
}

}  // namespace
}  // namespace orca
