// Memory, descriptors, threads and ports that are not to be had (F25, F29, F17).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "net/expect_error.h"
#include "orca/core/host.h"
#include "testing/cases.h"
#include "testing/cgroup.h"
#include "testing/processes.h"
#include "testing/seed.h"

namespace orca::comm {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::Child;
using ::testing::HasSubstr;
using testing::Voice;

// What `body` throws in a process of its own, as "code: text"; "nothing" when it throws nothing.
std::string ErrorInChild(const std::function<void()>& body) {
  Child child([&](const Voice& voice) {
    try {
      body();
      voice.Tell("nothing");
    } catch (...) {
      voice.Tell(testing::DescribeError(std::current_exception()));
    }
  });
  const auto line = child.Listen();
  const int status = child.Wait();
  if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
  return line.value_or("said nothing");
}

class LimitsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::kSanitized)
      GTEST_SKIP() << "the sanitizers' own memory and descriptors would be counted, too";
  }
};

TEST_F(LimitsTest, F25AnArrayThatTheCgroupDoesNotAllowIsRefusedNamingIt) {
  const auto group =
      testing::Cgroup::Create("memory", "memory.limit_in_bytes", std::size_t{64} << 20);
  if (!group) GTEST_SKIP();
  const std::string error = ErrorInChild([&] {
    if (!group->Enter()) throw std::runtime_error("cannot enter the cgroup");
    const auto arena = Arena::Create();
    std::memset(arena->Allocate(std::size_t{8} << 20), 1, std::size_t{8} << 20);
    arena->Allocate(std::size_t{128} << 20);
  });
  EXPECT_THAT(error, AllOf(HasSubstr("resource exhausted"), HasSubstr("128.0 MiB"),
                           HasSubstr("memory limit of 64.0 MiB"), HasSubstr(group->path())));
}

TEST_F(LimitsTest, F25ManySmallArraysAreRefusedBeforeTheKernelKills) {
  const auto group =
      testing::Cgroup::Create("memory", "memory.limit_in_bytes", std::size_t{64} << 20);
  if (!group) GTEST_SKIP();
  const std::string error = ErrorInChild([&] {
    if (!group->Enter()) throw std::runtime_error("cannot enter the cgroup");
    const auto arena = Arena::Create();
    for (;;) std::memset(arena->Allocate(std::size_t{1} << 20), 1, std::size_t{1} << 20);
  });
  EXPECT_THAT(error, AllOf(HasSubstr("resource exhausted"), HasSubstr("memory limit of 64.0 MiB")));
}

TEST_F(LimitsTest, F25AGroupWhoseSegmentDoesNotFitIsRefused) {
  const auto group =
      testing::Cgroup::Create("memory", "memory.limit_in_bytes", std::size_t{64} << 20);
  if (!group) GTEST_SKIP();
  const std::string error = ErrorInChild([&] {
    if (!group->Enter()) throw std::runtime_error("cannot enter the cgroup");
    const std::size_t ballast = (std::size_t{63} << 20) - (std::size_t{1} << 18);
    const std::size_t room = AvailableMemory().bytes;
    void* memory =
        ::mmap(nullptr, ballast, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room > std::size_t{1} << 20)
      std::memset(memory, 1, std::min(ballast, room - (std::size_t{1} << 20)));
    testing::RunRanksAndCatch(
        2, testing::SharedMemoryLayout(), [](CommOptions&) {}, [](Communicator&) {});
    Communicator::Connect({});
  });
  EXPECT_THAT(error, AllOf(HasSubstr("resource exhausted"), HasSubstr("the group's shared memory"),
                           HasSubstr("memory limit of 64.0 MiB")));
}

TEST_F(LimitsTest, F29TooFewDescriptorsAreNamedWithTheLimit) {
  for (const rlim_t room : {rlim_t{0}, rlim_t{1}, rlim_t{2}, rlim_t{3}, rlim_t{4}, rlim_t{5}}) {
    const std::string error = ErrorInChild([room] {
      const int next = ::dup(0);  // the lowest free descriptor
      ::close(next);
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = static_cast<rlim_t>(next) + room;
      ::setrlimit(RLIMIT_NOFILE, &limit);
      const auto comm = Communicator::Connect({});
      for (;;) comm->arena()->Allocate(std::size_t{64} << 20);
    });
    EXPECT_THAT(error, AllOf(HasSubstr("resource exhausted"), HasSubstr("RLIMIT_NOFILE"),
                             HasSubstr("ulimit -n")))
        << "with room for " << room;
  }
}

TEST_F(LimitsTest, F29TooFewThreadsAreNamedWithTheLimit) {
  const auto group = testing::Cgroup::Create("pids", "pids.max", 1);
  if (!group) GTEST_SKIP();
  const std::string error = ErrorInChild([&] {
    // The second rank is outside of it: a group of one needs no thread.
    const auto store = NewFileStore(::testing::TempDir() + fmt::format("limits-{}", ::getpid()));
    const pid_t other = ::fork();
    if (other == 0) {
      try {
        Communicator::Connect({.rank = 1, .world = 2, .store = store});
      } catch (const Error&) {  // It is the other's error that counts.
      }
      ::_exit(0);
    }
    try {
      if (!group->Enter()) throw std::runtime_error("cannot enter the cgroup");
      Communicator::Connect({.rank = 0, .world = 2, .store = store});
    } catch (...) {
      ::kill(other, SIGKILL);
      ::waitpid(other, nullptr, 0);
      throw;
    }
  });
  EXPECT_THAT(error, AllOf(HasSubstr("resource exhausted"), HasSubstr("cannot start a thread"),
                           HasSubstr("RLIMIT_NPROC"), HasSubstr("pids.max")));
}

TEST_F(LimitsTest, F17AStoreOnAPortInUseNamesItsHolder) {
  std::string bound;
  const net::Secret secret = net::Secret::Random();
  const auto first = ServeTcpStore("127.0.0.1:0", secret, &bound);
  const std::string error = ErrorInChild([&] {
    std::string again;
    ServeTcpStore(bound, secret, &again);
  });
  EXPECT_THAT(error, AllOf(HasSubstr("unavailable"), HasSubstr(bound), HasSubstr("in use by"),
                           HasSubstr(std::to_string(::getpid()))));
}

}  // namespace
}  // namespace orca::comm
