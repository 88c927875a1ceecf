// Shards beyond the memory for them lie in files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "orca/core/error.h"
#include "orca/core/memory_file.h"
#include "orca/data/array_store.h"
#include "orca/data/shard_home.h"
#include "orca/data/shared_block.h"
#include "testing/cgroup.h"
#include "testing/seed.h"

namespace orca::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kMiB = std::size_t{1} << 20;
// Shards of 2 MiB: a row takes eight pages.
constexpr std::uint64_t kRows = 64;
constexpr std::size_t kRowBytes = 32768;
const std::vector<ColumnSpec> kSpecs{
    {.name = "x", .dtype = DType::kInt64, .row_shape = {kRowBytes / 8}}};

/// A folder of a disk, removed when the object goes.
class Folder {
 public:
  Folder() : path_("./spill-XXXXXX") { ::mkdtemp(path_.data()); }
  ~Folder() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }
  bool IsEmpty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

std::shared_ptr<const Shard> PutNumbers(const std::shared_ptr<ShardHome>& home, std::int64_t from) {
  std::vector<std::int64_t> numbers(kRows * kRowBytes / 8);
  std::iota(numbers.begin(), numbers.end(), from);
  const Column column{.values = std::as_bytes(std::span(numbers))};
  return Shard::Put(home, kSpecs, kRows, std::span(&column, 1));
}

std::int64_t First(const Shard& shard) {
  std::int64_t number = 0;
  std::memcpy(&number, shard.columns()[0].values.data(), sizeof number);
  return number;
}

bool IsInFile(ShardHome& home, const Shard& shard) {
  return !IsInMemory(home.Open(shard.hold()->id()).fd.get());
}

// F26: files have no names, so nothing is left of them, whoever dies.
TEST(SpillTest, F26ShardsBeyondTheLimitAreFilesWithoutANameUntilTheyAreDropped) {
  const Folder folder;
  std::vector<std::string> told;
  const auto shelf =
      ShardShelf::Create({.limit = 5 * kMiB, .spill = folder.path(), .tell = [&](const auto& text) {
                            told.push_back(text);
                          }});
  std::vector<std::shared_ptr<const Shard>> shards;
  for (std::int64_t i = 0; i < 12; ++i) shards.push_back(PutNumbers(shelf, 1000 * i));
  EXPECT_LE(shelf->usage().held, 5 * kMiB);
  EXPECT_GE(shelf->usage().files, 20 * kMiB);
  EXPECT_TRUE(folder.IsEmpty());
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0], AllOf(HasSubstr("5.0 MiB"), HasSubstr(folder.path())));
  for (std::size_t i = 0; i < shards.size(); ++i) {
    EXPECT_EQ(IsInFile(*shelf, *shards[i]), i >= 2) << i;
    const auto other = Shard::Open(ShardHold::Take(shelf, shards[i]->hold()->id()));
    EXPECT_EQ(First(*other), static_cast<std::int64_t>(1000 * i));
    EXPECT_EQ(First(*shards[i]), static_cast<std::int64_t>(1000 * i));
  }
  const ShardMemory reader = shelf->Open(shards[11]->hold()->id());
  EXPECT_EQ(::pwrite(reader.fd.get(), "x", 1, 0), -1);
  EXPECT_EQ(::ftruncate(reader.fd.get(), 0), -1);
  // Room in memory is used again, room in files goes back to the disk.
  shards.erase(shards.begin());
  shards.push_back(PutNumbers(shelf, 7));
  EXPECT_FALSE(IsInFile(*shelf, *shards.back()));
  shards.resize(3);
  EXPECT_EQ(shelf->usage().files, 2 * shards.back()->size() / 4096 * 4096 + 2 * 4096);
  shards.clear();
  EXPECT_EQ(shelf->usage().files, 0U);
  EXPECT_EQ(shelf->usage().held, 0U);
}

TEST(SpillTest, WhatIsWrittenAgainAndAgainStaysInMemory) {
  const auto shelf = ShardShelf::Create({.limit = kMiB, .spill = "."});
  const auto block = SharedBlock::Create(shelf, 3 * kMiB);
  block->bytes()[2 * kMiB] = std::byte{7};
  EXPECT_EQ(shelf->usage().files, 0U);
  const auto again = SharedBlock::Open(ShardHold::Take(shelf, block->hold()->id()));
  EXPECT_EQ(again->bytes()[2 * kMiB], std::byte{7});
}

// A shard of another home may be a file, too.
TEST(SpillTest, AnAdoptedFileIsCountedAsOne) {
  const auto there = ShardShelf::Create({.limit = kMiB, .spill = "."});
  const auto shard = PutNumbers(there, 5);
  const auto here = ShardShelf::Create();
  here->Adopt(77, there->Open(shard->hold()->id()).fd);
  EXPECT_EQ(here->usage().held, 0U);
  EXPECT_GE(here->usage().files, 2 * kMiB);
  EXPECT_EQ(First(*Shard::Open(ShardHold::Adopt(here, 77))), 5);
}

std::vector<std::byte> Epoch(const std::shared_ptr<ShardHome>& home, std::int64_t shards) {
  const auto store = ArrayStore::Create(kSpecs, home);
  for (std::int64_t i = 0; i < shards; ++i) store->Add(PutNumbers(home, i * 1'000'000));
  std::vector<std::byte> all;
  const auto loader = store->Batches({.batch_size = 100, .seed = 3});
  while (const auto batch = loader->Next())
    all.insert(all.end(), batch->columns[0].values.begin(), batch->columns[0].values.end());
  return all;
}

TEST(SpillTest, BatchesOfFilesHaveTheSameBits) {
  const auto in_files = ShardShelf::Create({.limit = 2 * kMiB + 8192, .spill = "."});
  const auto spilled = Epoch(in_files, 5);
  EXPECT_TRUE(spilled == Epoch(ShardShelf::Create(), 5));
  EXPECT_EQ(spilled.size(), 5 * kRows * kRowBytes);
}

// Three times what the kernel allows: pages of files are given back, the process is not killed.
TEST(SpillTest, F07DataLargerThanTheCgroupIsReadToItsEnd) {
  if (testing::kSanitized)
    GTEST_SKIP() << "a sanitizer keeps freed memory, above the group's limit";
  constexpr std::size_t kAllowed = 48 * kMiB;
  const auto group = testing::Cgroup::Create("memory", "memory.limit_in_bytes", kAllowed);
  if (!group) GTEST_SKIP() << "no memory cgroup can be made";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(60);
    if (!group->Enter()) ::_exit(2);
    const auto shelf = ShardShelf::Create({.limit = 8 * kMiB, .spill = "."});
    const auto store = ArrayStore::Create(kSpecs, shelf);
    const std::int64_t shards = 3 * kAllowed / (kRows * kRowBytes);
    for (std::int64_t i = 0; i < shards; ++i) store->Add(PutNumbers(shelf, i));
    std::uint64_t rows = 0;
    for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
      const auto loader = store->Batches({.batch_size = 16, .epoch = epoch});
      while (const auto batch = loader->Next()) rows += batch->rows;
    }
    ::_exit(rows == 2 * kRows * static_cast<std::uint64_t>(shards) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace orca::data
