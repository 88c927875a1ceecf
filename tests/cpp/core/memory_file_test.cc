#include "orca/core/memory_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "orca/core/error.h"
#include "testing/seed.h"

namespace orca {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::vector<std::byte> RandomBytes(std::mt19937_64& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Small and large, on both sides of what is filled by several threads and of a huge page's borders,
// and twice into the same file: into fresh pages and into used ones.
TEST(MemoryFileTest, HoldsThePiecesThatWereWritten) {
  std::mt19937_64 random(testing::TestSeed());
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{5000}, 2 * kMiB, 2 * kMiB + 1, 9 * kMiB + 4097, 16 * kMiB}) {
    const UniqueFd file = MakeMemoryFile("test", size);
    std::vector<std::byte> expected(size, std::byte{0});
    for (int round = 0; round < 2; ++round) {
      std::vector<std::vector<std::byte>> memory;
      std::vector<FilePiece> pieces;
      const std::size_t step = std::max<std::size_t>(1, size / 3);
      for (std::size_t at = 0; at < size; at += step) {
        const std::size_t most = std::min(step, size - at);
        memory.push_back(RandomBytes(random, most - random() % std::min<std::size_t>(most, 100)));
        pieces.push_back({memory.back(), at});
        std::ranges::copy(memory.back(), expected.begin() + static_cast<std::ptrdiff_t>(at));
      }
      WriteMemoryFile(file.get(), pieces);
      const PrivateMapping mapping(file.get(), size);
      ASSERT_EQ(mapping.size(), size);
      ASSERT_EQ(std::memcmp(mapping.data(), expected.data(), size), 0) << size;
    }
  }
}

TEST(MemoryFileTest, NeighboursThatAreWrittenAsOneAreWhereTheyBelong) {
  std::mt19937_64 random(testing::TestSeed());
  const auto bytes = RandomBytes(random, 5 * kMiB);
  const std::span all(bytes);
  for (const std::size_t width : {std::size_t{64}, std::size_t{4000}, kMiB, 3 * kMiB}) {
    const UniqueFd fd = MakeMemoryFile("orca-test", 8 * kMiB);
    std::vector<FilePiece> pieces;
    std::vector<std::byte> expected(8 * kMiB);
    // Every fifth has a gap before it.
    for (std::size_t from = 0, to = 64, i = 0; from < all.size(); from += width, ++i) {
      const auto piece = all.subspan(from, std::min(width, all.size() - from));
      if (i % 5 == 4) to += 7;
      std::copy(piece.begin(), piece.end(), expected.begin() + static_cast<std::ptrdiff_t>(to));
      pieces.push_back({piece, to});
      to += piece.size();
    }
    WriteMemoryFile(fd.get(), pieces);
    const PrivateMapping mapped(fd.get(), 8 * kMiB);
    EXPECT_EQ(std::memcmp(mapped.data(), expected.data(), expected.size()), 0) << width;
  }
}

TEST(MemoryFileTest, WhatAMappingWritesStaysInIt) {
  const UniqueFd file = MakeMemoryFile("test", 4 * kMiB);
  const UniqueFd reader = OpenReadOnly(file.get());
  PrivateMapping first(reader.get(), 4 * kMiB);
  first.data()[3 * kMiB] = std::byte{7};
  const PrivateMapping second(file.get(), 4 * kMiB);
  EXPECT_EQ(second.data()[3 * kMiB], std::byte{0});
  first = PrivateMapping(reader.get(), 4 * kMiB);
  EXPECT_EQ(first.data()[3 * kMiB], std::byte{0});
}

TEST(MemoryFileTest, NobodyCanChangeItsSizeAndAReaderCannotWrite) {
  const UniqueFd file = MakeMemoryFile("test", 10'000);
  EXPECT_EQ(CheckMemoryFile(file.get()), 10'000U);
  EXPECT_NE(::ftruncate(file.get(), 1), 0);
  EXPECT_NE(::ftruncate(file.get(), 20'000), 0);
  const UniqueFd reader = OpenReadOnly(file.get());
  EXPECT_EQ(::pwrite(reader.get(), "x", 1, 0), -1);
  const std::vector<std::byte> much(20'000);
  const FilePiece beyond{much, 0};
  EXPECT_THROW(WriteMemoryFile(file.get(), std::span(&beyond, 1)), Error);
}

TEST(MemoryFileTest, MemoryThatCanShrinkIsRefused) {
  const UniqueFd open(::memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open.get(), 4096), 0);
  EXPECT_THROW(CheckMemoryFile(open.get()), Error);
}

TEST(DiskFileTest, HoldsThePiecesThatWereWrittenAndHasNoName) {
  const DiskFile file = MakeDiskFile(20 * kMiB, ".");
  EXPECT_EQ(file.folder, ".");
  EXPECT_FALSE(IsInMemory(file.fd.get()));
  EXPECT_EQ(CheckMemoryFile(file.fd.get()), 20 * kMiB);
  struct stat info {};
  ASSERT_EQ(::fstat(file.fd.get(), &info), 0);
  EXPECT_EQ(info.st_nlink, 0U);
  std::mt19937_64 random(testing::TestSeed());
  const auto first = RandomBytes(random, 9 * kMiB + 5);
  const auto second = RandomBytes(random, 17);
  const FilePiece pieces[] = {{first, 3}, {second, 20 * kMiB - 17}};
  WriteMemoryFile(file.fd.get(), pieces);
  const UniqueFd reader = OpenReadOnly(file.fd.get());
  EXPECT_EQ(::pwrite(reader.get(), "x", 1, 0), -1);
  EXPECT_NE(::ftruncate(reader.get(), 1), 0);
  const PrivateMapping mapped(reader.get(), 20 * kMiB);
  EXPECT_EQ(std::memcmp(mapped.data() + 3, first.data(), first.size()), 0);
  EXPECT_EQ(std::memcmp(mapped.data() + 20 * kMiB - 17, second.data(), second.size()), 0);
  EXPECT_EQ(mapped.data()[15 * kMiB], std::byte{0});
}

// From now on in this process, no file system makes files without a name.
void RefuseTmpfile() {
  const std::uint32_t flag = O_TMPFILE & ~O_DIRECTORY;
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_openat, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args) + 2 * sizeof(__u64)),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, flag, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = std::size(program), .filter = program};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    std::_Exit(2);
}

// 0: all is well; 2: this machine has no filters.
int MakeOneWithoutTmpfile() {
  RefuseTmpfile();
  if (::open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) >= 0) return 3;
  const DiskFile file = MakeDiskFile(kMiB, "without-tmpfile");
  if (!std::filesystem::is_empty("without-tmpfile")) return 4;
  const std::byte last{7};
  const FilePiece piece{std::span(&last, 1), kMiB - 1};
  WriteMemoryFile(file.fd.get(), std::span(&piece, 1));
  const PrivateMapping mapped(OpenReadOnly(file.fd.get()).get(), CheckMemoryFile(file.fd.get()));
  return mapped.size() == kMiB && mapped.data()[kMiB - 1] == last ? 0 : 5;
}

TEST(DiskFileTest, WhereFilesNeedANameItIsRemovedAtOnce) {
  const pid_t child = ::fork();
  if (child == 0) {
    int found = 1;
    try {
      found = MakeOneWithoutTmpfile();
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    std::_Exit(found);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "no filters of system calls here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
  std::filesystem::remove_all("without-tmpfile");
}

// F41: lengths and places are 64-bit numbers.
TEST(DiskFileTest, F41IsLargerThanFourGigabytes) {
  constexpr std::size_t kSize = (std::size_t{5} << 30) + 17;
  DiskFile file;
  try {
    file = MakeDiskFile(kSize, ".");
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const std::byte last{7};
  const FilePiece piece{std::span(&last, 1), kSize - 1};
  WriteMemoryFile(file.fd.get(), std::span(&piece, 1));
  EXPECT_EQ(CheckMemoryFile(file.fd.get()), kSize);
  const PrivateMapping mapped(file.fd.get(), kSize);
  EXPECT_EQ(mapped.data()[kSize - 1], last);
  EXPECT_EQ(mapped.data()[(kSize - 1) & 0xffffffff], std::byte{0});
}

TEST(DiskFileTest, AFileThatHasANameIsRefused) {
  const UniqueFd named(::open("named", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(named.get(), 4096), 0);
  EXPECT_THROW(CheckMemoryFile(named.get()), Error);
  ::unlink("named");
}

std::string WhyNot(std::size_t bytes, const std::string& folder) {
  try {
    MakeDiskFile(bytes, folder);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kResourceExhausted);
    return error.what();
  }
  return "there was room";
}

TEST(DiskFileTest, WhatCannotTakeItIsNamedWithTheReasonAndTheRemedy) {
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  EXPECT_THAT(WhyNot(std::size_t{1} << 50, "."),
              AllOf(HasSubstr("1.0 PiB"), HasSubstr("left there"), HasSubstr("ORCA_SPILL")));
  EXPECT_THAT(WhyNot(4096, "/dev/shm"), HasSubstr("/dev/shm: it is in memory itself"));
  EXPECT_THAT(WhyNot(4096, "/proc/self"), HasSubstr("/proc/self: "));
  ::setenv("ORCA_SPILL", "/dev/shm", 1);
  EXPECT_THAT(WhyNot(4096, ""), HasSubstr("/dev/shm: "));  // and nowhere else
  ::unsetenv("ORCA_SPILL");
}

}  // namespace
}  // namespace orca
