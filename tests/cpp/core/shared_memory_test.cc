#include "orca/core/shared_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <utility>

#include "net/expect_error.h"
#include "orca/net/socket.h"

namespace orca {
namespace {

using ::testing::HasSubstr;

TEST(SharedMemoryTest, BeginsWithZeroesAndKeepsWhatIsWritten) {
  const SharedMemory memory = SharedMemory::Create("orca-test", 10'000);
  EXPECT_EQ(memory.size(), 10'000u);
  EXPECT_EQ(std::count(memory.data(), memory.data() + memory.size(), std::byte{0}), 10'000);
  memory.data()[9'999] = std::byte{7};
  EXPECT_EQ(memory.data()[9'999], std::byte{7});
}

TEST(SharedMemoryTest, ItsLabelShowsInTheMapsOfTheProcess) {
  const SharedMemory memory = SharedMemory::Create("orca-label-for-test", 4096);
  std::ifstream maps("/proc/self/maps");
  const std::string text((std::istreambuf_iterator<char>(maps)), {});
  EXPECT_THAT(text, HasSubstr("orca-label-for-test"));
}

TEST(SharedMemoryTest, IsTheSameMemoryAtTheOtherEndOfASocket) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd a(ends[0]);
  const UniqueFd b(ends[1]);
  const Deadline deadline = Deadline::After(std::chrono::seconds(10));
  SharedMemory made = SharedMemory::Create("orca-test", 8192);
  net::SendFd(a.get(), made.fd(), deadline);
  const SharedMemory mapped = SharedMemory::Map(net::RecvFd(b.get(), deadline), 8192);
  EXPECT_EQ(mapped.fd(), -1) << "the mapping alone keeps it";
  made.data()[5000] = std::byte{42};
  EXPECT_EQ(mapped.data()[5000], std::byte{42});
  made = SharedMemory();
  EXPECT_EQ(mapped.data()[5000], std::byte{42}) << "the other mapping keeps it alive";
}

TEST(SharedMemoryTest, CannotBeShrunkOrGrownOrUnsealedByAPeer) {
  const SharedMemory memory = SharedMemory::Create("orca-test", 8192);
  EXPECT_NE(::ftruncate(memory.fd(), 0), 0);
  EXPECT_NE(::ftruncate(memory.fd(), 16'384), 0);
  EXPECT_NE(::fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(SharedMemoryTest, RefusesMemoryThatAPeerCouldShrinkUnderUs) {
  UniqueFd fd(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(fd.get(), 4096), 0);
  EXPECT_THAT(ErrorOf([&] { SharedMemory::Map(std::move(fd), 4096); }),
              IsError(Code::kPeerLost, HasSubstr("4096 sealed ones were expected")));
}

TEST(SharedMemoryTest, RefusesMemoryOfAnotherSize) {
  const SharedMemory memory = SharedMemory::Create("orca-test", 8192);
  EXPECT_THAT(ErrorOf([&] { SharedMemory::Map(UniqueFd(::dup(memory.fd())), 4096); }),
              IsError(Code::kPeerLost, HasSubstr("8192 bytes")));
}

TEST(SharedMemoryTest, RefusesADescriptorThatIsNoSharedMemory) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const UniqueFd other(ends[1]);
  EXPECT_EQ(ErrorOf([&] { SharedMemory::Map(UniqueFd(ends[0]), 4096); }).code(), Code::kPeerLost);
}

TEST(SharedMemoryTest, MovesWithoutMapping) {
  SharedMemory first = SharedMemory::Create("orca-test", 4096);
  std::byte* const data = first.data();
  SharedMemory second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT: what a moved-from object is, is promised
  first = std::move(second);
  EXPECT_EQ(first.data(), data);
  EXPECT_EQ(second.size(), 0u);  // NOLINT
}

TEST(SharedMemoryTest, SaysWhatDoesNotFitTheAddressSpace) {
  EXPECT_THAT(ErrorOf([] { SharedMemory::Create("orca-test", std::size_t{1} << 62); }),
              IsError(Code::kResourceExhausted, HasSubstr("shared memory")));
}

}  // namespace
}  // namespace orca
