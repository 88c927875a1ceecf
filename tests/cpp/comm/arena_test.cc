// Registered memory: what the arena hands out, against a model.
#include "orca/comm/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "comm/segment_arena.h"
#include "net/expect_error.h"
#include "testing/seed.h"

namespace orca::comm {
namespace {

using ::testing::HasSubstr;

std::uintptr_t AddressOf(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

TEST(ArenaTest, MemoryIsAlignedToCacheLinesAndZeroAtFirst) {
  const auto arena = Arena::Create();
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{65}, std::size_t{10'000}}) {
    auto* memory = static_cast<std::byte*>(arena->Allocate(bytes));
    EXPECT_EQ(AddressOf(memory) % 64, 0u);
    EXPECT_EQ(std::count(memory, memory + bytes, std::byte{0}), static_cast<std::ptrdiff_t>(bytes));
    EXPECT_TRUE(arena->Contains(memory, bytes));
  }
}

TEST(ArenaTest, KnowsWhatIsItsOwn) {
  const auto arena = Arena::Create();
  const auto other = Arena::Create();
  auto* memory = static_cast<std::byte*>(arena->Allocate(100));
  int outside = 0;
  EXPECT_FALSE(other->Contains(memory, 1));
  EXPECT_FALSE(arena->Contains(&outside, 1));
  EXPECT_FALSE(arena->Contains(memory, std::size_t{1} << 40)) << "goes beyond the segment";
  EXPECT_TRUE(arena->Contains(memory + 50, 50));
  EXPECT_FALSE(Arena::Create()->Contains(nullptr, 0));
}

TEST(ArenaTest, FreedMemoryIsUsedAgainAndNeighboursAreJoined) {
  const auto arena = Arena::Create();
  void* a = arena->Allocate(1000);
  void* b = arena->Allocate(1000);
  void* c = arena->Allocate(1000);
  void* guard = arena->Allocate(64);
  arena->Free(a);
  arena->Free(c);
  arena->Free(b);  // joins both neighbours
  EXPECT_EQ(arena->Allocate(3 * 1024), a);
  arena->Free(guard);
}

TEST(ArenaTest, AnArrayLargerThanASegmentGetsOneOfItsOwn) {
  const auto arena = Arena::Create();
  const std::size_t large = SegmentArena::kSegmentBytes + 12'345;
  auto* memory = static_cast<std::byte*>(arena->Allocate(large));
  memory[large - 1] = std::byte{1};
  EXPECT_TRUE(arena->Contains(memory, large));
  arena->Free(memory);
}

TEST(ArenaTest, WhatDidNotComeFromItOrWasFreedBeforeIsRefused) {
  const auto arena = Arena::Create();
  auto* memory = static_cast<std::byte*>(arena->Allocate(1000));
  int outside = 0;
  EXPECT_THAT(ErrorOf([&] { arena->Free(&outside); }),
              IsError(Code::kInvalidArgument, HasSubstr("did not come")));
  EXPECT_THAT(ErrorOf([&] { arena->Free(memory + 64); }),
              IsError(Code::kInvalidArgument, HasSubstr("did not come")));
  arena->Free(memory);
  EXPECT_THAT(ErrorOf([&] { arena->Free(memory); }),
              IsError(Code::kInvalidArgument, HasSubstr("freed before")));
  EXPECT_NO_THROW(arena->Free(nullptr));
}

TEST(ArenaTest, F25AnImpossibleSizeIsRefusedBeforeAnythingIsTouched) {
  const auto arena = Arena::Create();
  EXPECT_THAT(ErrorOf([&] { arena->Allocate(~std::size_t{0}); }),
              IsError(Code::kInvalidArgument, HasSubstr("bytes")));
  EXPECT_THAT(ErrorOf([&] { arena->Allocate(std::size_t{1} << 50); }),
              IsError(Code::kResourceExhausted, HasSubstr("1.0 PiB")));
  EXPECT_NE(arena->Allocate(100), nullptr);
}

TEST(ArenaTest, RandomUseNeverOverlapsAndKeepsEveryByte) {
  std::mt19937_64 random(testing::TestSeed());
  const auto arena = Arena::Create();
  struct Block {
    std::byte* data;
    std::size_t size;
    std::byte mark;
  };
  std::map<std::uintptr_t, Block> blocks;  // the model
  const auto check = [](const Block& block) {
    return std::count(block.data, block.data + block.size, block.mark) ==
           static_cast<std::ptrdiff_t>(block.size);
  };
  for (int step = 0; step < 5000; ++step) {
    if (blocks.size() < 50 || random() % 2 == 0) {
      const std::size_t size = random() % 4 == 0 ? random() % 100'000 : random() % 300;
      Block block{static_cast<std::byte*>(arena->Allocate(size)), size,
                  static_cast<std::byte>(random())};
      const auto next = blocks.lower_bound(AddressOf(block.data));
      if (next != blocks.end()) {
        ASSERT_LE(AddressOf(block.data) + std::max<std::size_t>(size, 1), next->first);
      }
      if (next != blocks.begin()) {
        const Block& before = std::prev(next)->second;
        ASSERT_LE(AddressOf(before.data) + std::max<std::size_t>(before.size, 1),
                  AddressOf(block.data));
      }
      std::fill_n(block.data, size, block.mark);
      blocks.emplace(AddressOf(block.data), block);
    } else {
      auto victim = blocks.begin();
      std::advance(victim, random() % blocks.size());
      ASSERT_TRUE(check(victim->second));
      arena->Free(victim->second.data);
      blocks.erase(victim);
    }
  }
  for (const auto& [address, block] : blocks) {
    EXPECT_TRUE(check(block));
    arena->Free(block.data);
  }
  // All is one piece again: the whole segment can be had at once.
  SegmentArena& segments = dynamic_cast<SegmentArena&>(*arena);
  void* whole = arena->Allocate(SegmentArena::kSegmentBytes);
  EXPECT_EQ(segments.Find(whole, SegmentArena::kSegmentBytes)->segment, 0u);
}

TEST(ArenaTest, ManyThreadsUseItAtOnce) {
  const auto arena = Arena::Create();
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&arena, t] {
      std::mt19937_64 random(static_cast<std::uint64_t>(t));
      std::vector<std::pair<std::byte*, std::size_t>> mine;
      for (int step = 0; step < 1000; ++step) {
        const std::size_t size = 1 + random() % 5000;
        mine.emplace_back(static_cast<std::byte*>(arena->Allocate(size)), size);
        std::memset(mine.back().first, t, size);
        EXPECT_TRUE(arena->Contains(mine.back().first, size));
        if (mine.size() < 20) continue;
        const auto& [data, bytes] = mine[random() % mine.size()];
        EXPECT_EQ(std::count(data, data + bytes, static_cast<std::byte>(t)),
                  static_cast<std::ptrdiff_t>(bytes));
        arena->Free(mine.front().first);
        mine.erase(mine.begin());
      }
      for (const auto& block : mine) arena->Free(block.first);
    });
  }
}

TEST(SegmentArenaTest, NamesItsSegmentsForPeers) {
  SegmentArena arena;
  void* memory = arena.Allocate(1000);
  const auto place = arena.Find(memory, 1000);
  ASSERT_TRUE(place.has_value());
  const auto descriptor = arena.segment(place->segment);
  EXPECT_GE(descriptor.fd, 0);
  EXPECT_GE(descriptor.bytes, SegmentArena::kSegmentBytes);
  EXPECT_THAT(ErrorOf([&] { arena.segment(7); }),
              IsError(Code::kInvalidArgument, HasSubstr("no segment 7")));
}

}  // namespace
}  // namespace orca::comm
