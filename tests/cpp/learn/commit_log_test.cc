#include "orca/learn/commit_log.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "orca/core/error.h"

namespace orca::learn {
namespace {

using Block = std::array<std::byte, CommitLog::kBlockSize>;

Commit Numbered(std::uint64_t number) {
  return {.number = number, .step = 10 * number, .loss_sum = 0.5, .record = 7};
}

TEST(CommitLog, HasTheLastOne) {
  alignas(64) Block block{};
  CommitLog log(block);
  EXPECT_FALSE(log.Read().has_value());
  for (std::uint64_t number = 1; number <= 5; ++number) {
    log.Write(Numbered(number));
    ASSERT_TRUE(log.Read().has_value());
    EXPECT_EQ(log.Read()->number, number);
    EXPECT_EQ(CommitLog(block).Read()->step, 10 * number);
  }
}

TEST(CommitLog, RefusesWhatDoesNotFollow) {
  alignas(64) Block block{};
  CommitLog log(block);
  EXPECT_THROW(log.Write(Numbered(0)), Error);
  log.Write(Numbered(4));
  for (const std::uint64_t wrong : {3, 4, 6}) EXPECT_THROW(log.Write(Numbered(wrong)), Error);
  std::array<std::byte, 100> small{};
  EXPECT_THROW(CommitLog{small}, Error);
}

TEST(CommitLog, IsTheOldOneOrTheNewOneWhateverIsWritten) {
  alignas(64) Block before{};
  CommitLog(before).Write(Numbered(1));
  CommitLog(before).Write(Numbered(2));
  alignas(64) Block after = before;
  CommitLog(after).Write(Numbered(3));
  int old_ones = 0;
  // Every byte that differs, alone and with all before it.
  for (std::size_t i = 0; i <= before.size(); ++i) {
    alignas(64) Block torn = before;
    std::memcpy(torn.data(), after.data(), i);
    const auto found = CommitLog(torn).Read();
    ASSERT_TRUE(found.has_value()) << i;
    EXPECT_TRUE(found->number == 2 || found->number == 3) << i;
    EXPECT_EQ(found->step, 10 * found->number);
    if (found->number == 2) ++old_ones;
    torn = after;
    std::memcpy(torn.data(), before.data(), i);
    EXPECT_TRUE(CommitLog(torn).Read()->number >= 2) << i;
  }
  EXPECT_GT(old_ones, 0);
}

}  // namespace
}  // namespace orca::learn
