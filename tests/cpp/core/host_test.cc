#include "orca/core/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

#include "net/expect_error.h"
#include "testing/cgroup.h"
#include "testing/processes.h"
#include "testing/seed.h"

namespace orca {
namespace {

using ::testing::AllOf;
using testing::Child;
using ::testing::HasSubstr;
using ::testing::Ne;
using testing::Voice;

// What `body` returns in a process of its own.
std::string InChild(const std::function<std::string()>& body) {
  Child child([&](const Voice& voice) { voice.Tell(body()); });
  const auto line = child.Listen();
  child.Wait();
  return line.value_or("said nothing");
}

TEST(HostTest, IdentityIsTheSameInEveryProcessOfThisHost) {
  EXPECT_EQ(InChild(HostIdentity), HostIdentity());
  EXPECT_THAT(HostIdentity(), HasSubstr("net:["));
}

TEST(HostTest, IdentityTellsNetworkNamespacesApart) {
  const std::string other =
      InChild([] { return ::unshare(CLONE_NEWNET) == 0 ? HostIdentity() : "not permitted"; });
  if (other == "not permitted") GTEST_SKIP() << "network namespaces are not permitted here";
  EXPECT_NE(other, HostIdentity());
}

TEST(HostTest, IdentityTellsUsersApart) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  EXPECT_NE(InChild([] { return ::setuid(12345) == 0 ? HostIdentity() : ""; }), HostIdentity());
}

TEST(HostTest, AllowedCpusFollowTheAffinityMask) {
  EXPECT_GE(AllowedCpus().count(), 1u);
  const std::string narrowed = InChild([] {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    std::size_t first = 0;
    while (!AllowedCpus().test(first)) ++first;
    CPU_SET(first, &mask);
    ::sched_setaffinity(0, sizeof(mask), &mask);
    return std::to_string(AllowedCpus().count());
  });
  EXPECT_EQ(narrowed, "1");
}

TEST(HostTest, CpuLimitIsAtLeastOne) { EXPECT_GE(CgroupCpuLimit(), 1); }

TEST(HostTest, CpuLimitFollowsTheCgroup) {
  const auto group =
      testing::Cgroup::Create("cpu", "cpu.cfs_quota_us", 250'000);  // of 100 ms: two and a half
  if (!group) GTEST_SKIP();
  EXPECT_EQ(
      InChild([&] { return group->Enter() ? std::to_string(CgroupCpuLimit()) : "not permitted"; }),
      "3");
}

TEST(HostTest, AvailableMemoryIsThatOfTheMachineOrLess) {
  const MemoryLeft left = AvailableMemory();
  EXPECT_GT(left.bytes, 0u);
  EXPECT_LE(left.bytes, static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * 4096);
  EXPECT_THAT(left.limit, Ne(""));
}

TEST(HostTest, F25AvailableMemoryFollowsTheCgroupAndNamesIt) {
  if (testing::kSanitized) GTEST_SKIP() << "the sanitizer's own memory counts, too";
  const auto group =
      testing::Cgroup::Create("memory", "memory.limit_in_bytes", std::size_t{32} << 20);
  if (!group) GTEST_SKIP();
  const std::string limit = InChild([&] {
    if (!group->Enter()) return std::string("not permitted");
    const MemoryLeft left = AvailableMemory();
    return left.bytes <= std::size_t{32} << 20 ? left.limit : "too much";
  });
  EXPECT_THAT(limit,
              AllOf(HasSubstr("cgroup's memory limit of 32.0 MiB"), HasSubstr(group->path())));
}

TEST(HostTest, CheckMemoryForNamesWhatIsNeededAndWhatLimitsIt) {
  EXPECT_NO_THROW(CheckMemoryFor(1, "a byte"));
  EXPECT_THAT(
      ErrorOf([] { CheckMemoryFor(std::numeric_limits<std::size_t>::max(), "the universe"); }),
      IsError(Code::kResourceExhausted, AllOf(HasSubstr("the universe needs 16.0 EiB"),
                                              HasSubstr("leaves"), HasSubstr("raise the limit"))));
}

TEST(HostTest, F29LimitErrorsNameTheLimitAndItsValue) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_THAT(DescribeLimitError(EMFILE),
              AllOf(HasSubstr("RLIMIT_NOFILE"), HasSubstr(std::to_string(limit.rlim_cur)),
                    HasSubstr("ulimit -n")));
  EXPECT_THAT(DescribeLimitError(ENFILE), HasSubstr("fs.file-max"));
  EXPECT_THAT(DescribeLimitError(EAGAIN),
              AllOf(HasSubstr("RLIMIT_NPROC is "), HasSubstr("kernel.threads-max is ")));
  EXPECT_THAT(DescribeLimitError(ENOENT), HasSubstr("No such file"));
}

TEST(HostTest, F27ForkCountRisesInTheChildOnly) {
  const std::uint64_t before = ForkCount();
  EXPECT_EQ(InChild([] { return std::to_string(ForkCount()); }), std::to_string(before + 1));
  EXPECT_EQ(ForkCount(), before);
}

TEST(HostTest, HumanBytesAreShort) {
  EXPECT_EQ(HumanBytes(0), "0 bytes");
  EXPECT_EQ(HumanBytes(1023), "1023 bytes");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(std::size_t{3} << 30), "3.0 GiB");
}

}  // namespace
}  // namespace orca
