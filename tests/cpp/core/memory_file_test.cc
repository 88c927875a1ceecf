#include "orca/core/memory_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
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

}  // namespace
}  // namespace orca
