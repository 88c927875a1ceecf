#include "runtime/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>

namespace orca::runtime {
namespace {

/// How much of this process's own memory is in huge pages.
std::size_t HugeBytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("AnonHugePages:")) return std::stoul(line.substr(14)) * 1024;
  return 0;
}

bool CanCollapse() {
  void* const memory =
      ::mmap(nullptr, 2 * kHugeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  auto* const piece = reinterpret_cast<void*>((address / kHugeBytes + 1) * kHugeBytes);
  std::memset(memory, 1, 2 * kHugeBytes);
  const bool can = ::madvise(piece, kHugeBytes, 25) == 0;
  ::munmap(memory, 2 * kHugeBytes);
  return can;
}

TEST(HugePagesTest, MovesWhatIsWrittenAndKeepsItsContent) {
  if (!CanCollapse()) GTEST_SKIP() << "this kernel has no MADV_COLLAPSE, or no huge page left";
  constexpr std::size_t kBytes = 16 * kHugeBytes;
  void* const memory =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ::madvise(memory, kBytes, MADV_NOHUGEPAGE);  // whatever the machine's default is
  auto* const words = static_cast<std::uint64_t*>(memory);
  for (std::size_t i = 0; i < kBytes / 8; ++i) words[i] = i * 0x9e3779b97f4a7c15;
  ::madvise(memory, kBytes, MADV_HUGEPAGE);
  const std::size_t before = HugeBytes();

  HugePages pages;
  EXPECT_FALSE(pages.pending());
  pages.Find();
  EXPECT_TRUE(pages.pending());
  while (pages.pending()) pages.MoveOne();

  EXPECT_GE(HugeBytes(), before + 8 * kHugeBytes);
  for (std::size_t i = 0; i < kBytes / 8; ++i) ASSERT_EQ(words[i], i * 0x9e3779b97f4a7c15);
  ::munmap(memory, kBytes);
}

}  // namespace
}  // namespace orca::runtime
