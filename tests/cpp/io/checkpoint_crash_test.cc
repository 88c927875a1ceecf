// F23: the machine stops at every point of writing a checkpoint. F21, F22: every call fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "io/folder.h"
#include "io/sample.h"
#include "net/expect_error.h"
#include "orca/io/checkpoint_store.h"
#include "testing/crash_files.h"
#include "testing/mutant.h"
#include "testing/seed.h"

namespace orca::io {
namespace {

using orca::testing::Change;
using orca::testing::Crash;
using orca::testing::CrashFiles;
using orca::testing::CrashMode;
using orca::testing::IsNoticed;
using orca::testing::kSanitized;
using ::testing::ElementsAre;

constexpr std::uint64_t kSeeds = kSanitized ? 3 : 12;
constexpr CrashMode kModes[] = {CrashMode::kLost, CrashMode::kKept, CrashMode::kTorn,
                                CrashMode::kRandom};

/// Writing one checkpoint into a folder that holds others.
struct Case {
  const char* name;
  std::vector<Sample> before;
  Sample saved;
  std::size_t keep_last;
};

std::vector<Case> Cases() {
  return {{"the first", {}, Sample(10, 1), 0},
          {"a second", {Sample(10)}, Sample(20, 1), 0},
          {"instead of the first", {Sample(10)}, Sample(20, 1), 1},
          {"instead of the first of three", {Sample(5), Sample(7), Sample(10)}, Sample(20, 1), 2},
          {"the same iteration", {Sample(10)}, Sample(10, 1), 0},
          {"the same iteration, one kept", {Sample(5), Sample(10)}, Sample(10, 1), 1}};
}

CheckpointStore Quiet(CrashFiles& disk, std::size_t keep_last) {
  return CheckpointStore("/c", {.keep_last = keep_last, .warn = [](const std::string&) {}}, disk);
}

// The old newest, or the new one and no other; nothing only where there was nothing.
void ExpectOldOrNew(CrashFiles& disk, const Case& tried, bool must_be_new) {
  const CheckpointStore store = Quiet(disk, tried.keep_last);
  // What has the name of a checkpoint is one: none is half written or half removed.
  for (const std::uint64_t iteration : store.List()) EXPECT_NO_THROW((void)store.Open(iteration));
  const auto found = store.Latest();
  if (!found) {
    EXPECT_TRUE(tried.before.empty() && !must_be_new);
    return;
  }
  const bool is_new = found->fields() == tried.saved.content().fields;
  EXPECT_TRUE(is_new || !must_be_new);
  ASSERT_TRUE(is_new || !tried.before.empty());
  (is_new ? tried.saved : tried.before.back()).ExpectEqual(*found);
}

// Work goes on, and nothing is left over.
void ExpectGoesOn(CrashFiles& disk) {
  CheckpointStore store = Quiet(disk, 1);
  const Sample next(30, 2);
  store.Save(next.content());
  next.ExpectEqual(*store.Latest());
  EXPECT_THAT(disk.List("/c"), ElementsAre("model.30"));
}

std::unique_ptr<CrashFiles> Prepared(const Case& tried) {
  auto disk = std::make_unique<CrashFiles>();
  for (const Sample& sample : tried.before) Quiet(*disk, 0).Save(sample.content());
  return disk;
}

// Runs `work` with a crash at each of its steps; `check` sees each disk that can be found then.
int CrashEverywhere(const std::function<std::unique_ptr<CrashFiles>()>& prepare,
                    const std::function<void(CrashFiles&)>& work,
                    const std::function<void(CrashFiles&, bool finished)>& check) {
  int points = 0;
  for (bool finished = false; !finished; ++points) {
    const auto disk = prepare();
    disk->CrashAt(static_cast<std::uint64_t>(points) + 1);
    try {
      work(*disk);
      finished = true;
    } catch (const Crash&) {
    }
    for (const CrashMode mode : kModes) {
      const bool is_random = mode == CrashMode::kTorn || mode == CrashMode::kRandom;
      for (std::uint64_t seed = 0; seed < (is_random ? kSeeds : 1); ++seed) {
        SCOPED_TRACE(::testing::Message() << "point " << points << ", mode "
                                          << static_cast<int>(mode) << ", seed " << seed);
        check(*disk->Reboot(mode, seed), finished);
        if (::testing::Test::HasFailure()) return points;
      }
    }
  }
  return points;
}

// At each call that changes something, with all that a disk may have kept of what was not synced.
// Returns the points, and how many calls of each kind there are.
std::pair<int, std::map<Change, std::uint64_t>> CrashWhileWriting(const Case& tried) {
  SCOPED_TRACE(tried.name);
  std::map<Change, std::uint64_t> counts;
  const int points = CrashEverywhere([&] { return Prepared(tried); },
                                     [&](CrashFiles& disk) {
                                       const auto before = disk.counts();
                                       Quiet(disk, tried.keep_last).Save(tried.saved.content());
                                       counts = disk.counts();
                                       for (const auto& [change, count] : before)
                                         counts[change] -= count;
                                     },
                                     [&](CrashFiles& disk, bool finished) {
                                       ExpectOldOrNew(disk, tried, finished);
                                       ExpectGoesOn(disk);
                                     });
  return {points, counts};
}

TEST(CheckpointCrashTest, F23EveryPointOfWritingLeavesTheOldOrTheNewCheckpoint) {
  for (const Case& tried : Cases()) {
    auto [points, counts] = CrashWhileWriting(tried);
    for (const Change change :
         {Change::kWrite, Change::kSync, Change::kRename, Change::kSyncFolder})
      EXPECT_GT(counts[change], 0U) << tried.name;
    if (tried.keep_last != 0) {
      EXPECT_GT(counts[Change::kRemove], 0U) << tried.name;
    }
    std::uint64_t calls = 0;
    for (const auto& [change, count] : counts) calls += count;
    EXPECT_EQ(points, calls + 1) << tried.name;  // and once without a crash
  }
}

TEST(CheckpointCrashTest, F23EveryMutantIsNoticed) {
  if (kSanitized) GTEST_SKIP() << "mutants are in the release build";
  const std::vector<Case> cases = Cases();
  for (const char* mutant :
       {"checkpoint-fsync", "checkpoint-fsync-names", "checkpoint-fsync-between",
        "checkpoint-aside", "checkpoint-old-first"}) {
    EXPECT_TRUE(std::ranges::any_of(cases, [&](const Case& tried) {
      return IsNoticed(mutant, [&] { CrashWhileWriting(tried); });
    })) << mutant;
  }
}

TEST(CheckpointCrashTest, F23ACrashWhileCleaningUpAfterACrashIsNoWorse) {
  for (const Case& tried : Cases()) {
    SCOPED_TRACE(tried.name);
    for (std::uint64_t first = 1; first < 60; first += 3) {
      bool crashed = false;
      const auto prepare = [&] {
        const auto disk = Prepared(tried);
        disk->CrashAt(first);
        try {
          Quiet(*disk, tried.keep_last).Save(tried.saved.content());
        } catch (const Crash&) {
          crashed = true;
        }
        return disk->Reboot(first % 2 == 0 ? CrashMode::kKept : CrashMode::kRandom, first);
      };
      CrashEverywhere(
          prepare, [&](CrashFiles& disk) { Quiet(disk, tried.keep_last); },
          [&](CrashFiles& disk, bool) { ExpectOldOrNew(disk, tried, !crashed); });
      if (!crashed || ::testing::Test::HasFailure()) break;
    }
  }
}

TEST(CheckpointCrashTest, F22AnyStepThatFailsLeavesTheOldOrTheNewCheckpoint) {
  for (const Case& tried : Cases()) {
    for (const int error : {EIO, ENOSPC, EROFS}) {
      // One step fails; and all steps from one on, as on a disk that is gone.
      for (const std::uint64_t count : {1U, 1'000'000U}) {
        for (std::uint64_t step = 1;; ++step) {
          SCOPED_TRACE(::testing::Message() << tried.name << ", error " << error << ", step "
                                            << step << ", count " << count);
          const auto disk = Prepared(tried);
          CheckpointStore store = Quiet(*disk, tried.keep_last);
          const std::uint64_t before = disk->steps();
          disk->FailAt(step, error, count);
          bool saved = true;
          try {
            store.Save(tried.saved.content());
          } catch (const Error& thrown) {
            saved = false;
            EXPECT_EQ(thrown.code(),
                      error == ENOSPC ? Code::kResourceExhausted : Code::kUnavailable);
          }
          const bool reached = disk->steps() - before >= step;
          disk->FailAt(0, 0, 0);
          ExpectOldOrNew(*disk, tried, saved);
          ExpectGoesOn(*disk);
          ASSERT_FALSE(::testing::Test::HasFailure());
          if (!reached) break;
        }
      }
    }
  }
}

void SaveInShortWrites() {
  CrashFiles disk;
  disk.CutWrites(7);
  Quiet(disk, 0).Save(Sample(10).content());
  Sample(10).ExpectEqual(*Quiet(disk, 0).Latest());
}

TEST(CheckpointCrashTest, F22WritesThatAreInterruptedAndShortLoseNothing) {
  SaveInShortWrites();
  if (kSanitized) return;  // Mutants are in the release build.
  EXPECT_TRUE(IsNoticed("write-again", SaveInShortWrites));
}

TEST(CheckpointCrashTest, F21ADiskThatIsFullAtAnyByteCostsTheNewCheckpointOnly) {
  const Case tried{"a second", {Sample(10)}, Sample(20, 1), 1};
  for (std::uint64_t room = 0; room < 6000; room += 97) {
    const auto disk = Prepared(tried);
    disk->SetRoom(room);
    CheckpointStore store = Quiet(*disk, 1);
    bool saved = true;
    try {
      store.Save(tried.saved.content());
    } catch (const Error& error) {
      saved = false;
      EXPECT_EQ(error.code(), Code::kResourceExhausted);
    }
    ExpectOldOrNew(*disk, tried, saved);
    EXPECT_EQ(disk->List("/c").size(), 1U);
    disk->SetRoom(1'000'000);
    ExpectGoesOn(*disk);
  }
}

// F21 with the kernel's own file system. In a child, since the mount is for it alone.
TEST(CheckpointCrashTest, F21ARealDiskThatIsFullKeepsTheOldCheckpoint) {
  const TestFolder folder;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(60);
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=256k") != 0)
      ::_exit(77);
    CheckpointStore store(folder.path(), {.keep_last = 1});
    const Sample small(1, 0, 1000);
    store.Save(small.content());
    const Sample large(2, 0, 100'000);
    const Error error = ErrorOf([&] { store.Save(large.content()); });
    int result = error.code() == Code::kResourceExhausted ? 0 : 1;
    small.ExpectEqual(*store.Latest());
    store.Save(Sample(3).content());
    result += store.List() == std::vector<std::uint64_t>{3} ? 0 : 2;
    // And one that cannot be written at all.
    if (::mount("tmpfs", folder.path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=256k") != 0)
      ::_exit(77);
    const Error read_only = ErrorOf([&] { store.Save(Sample(4).content()); });
    result += read_only.code() == Code::kUnavailable ? 0 : 4;
    Sample(3).ExpectEqual(*CheckpointStore(folder.path()).Latest());
    ::_exit(::testing::Test::HasFailure() ? 8 : result);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "this user may not mount";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// F26: what a killed process left goes, what a living one writes stays.
TEST(CheckpointCrashTest, F26LeftoversOfTheDeadAreRemovedAndOfTheLivingAreNot) {
  const TestFolder folder;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    RealFiles().MakeFolder(folder.path() / ".tmp-child");
    const auto lock = RealFiles().TryLock(folder.path() / ".tmp-child");
    WriteAllTo(folder.path() / ".tmp-child/model.safetensors", "half");
    [[maybe_unused]] const auto told = ::write(ready[1], "x", 1);
    ::alarm(60);
    ::pause();
    ::_exit(1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(ready[0]);
  ::close(ready[1]);
  CheckpointStore(folder.path()).Save(Sample(1).content());
  EXPECT_TRUE(std::filesystem::exists(folder.path() / ".tmp-child/model.safetensors"));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const CheckpointStore opened(folder.path());
  EXPECT_THAT(folder.names(), ElementsAre("model.1"));
}

}  // namespace
}  // namespace orca::io
