#include "orca/io/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "io/file_tools.h"
#include "io/folder.h"
#include "net/expect_error.h"
#include "testing/crash_files.h"

namespace orca::io {
namespace {

using orca::testing::Crash;
using orca::testing::CrashFiles;
using orca::testing::CrashMode;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(AtomicFileTest, HasItsNameOnlyWhenItIsComplete) {
  const TestFolder folder;
  const Path path = folder.path() / "file";
  {
    AtomicFile file(path);
    file.Write("one ");
    file.Write("two");
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_EQ(file.size(), 7U);
    file.Commit();
  }
  EXPECT_EQ(ReadAll(path), "one two");
  EXPECT_THAT(folder.names(), ElementsAre("file"));
}

TEST(AtomicFileTest, LeavesTheOldFileWhenItIsAbandoned) {
  const TestFolder folder;
  const Path path = folder.path() / "file";
  WriteAllTo(path, "old");
  {
    AtomicFile file(path);
    file.Write("new");
  }
  EXPECT_EQ(ReadAll(path), "old");
  EXPECT_THAT(folder.names(), ElementsAre("file"));
}

TEST(AtomicFileTest, IsForItsUserAloneWhateverTheUmaskUnlessItIsToBeShared) {
  const TestFolder folder;
  const auto mode_of = [&](mode_t mask, Access access) {
    const mode_t before = ::umask(mask);
    AtomicFile file(folder.path() / "file", access);
    file.Commit();
    ::umask(before);
    struct stat info {};
    EXPECT_EQ(::stat((folder.path() / "file").c_str(), &info), 0);
    return info.st_mode & 0777U;
  };
  EXPECT_EQ(mode_of(0, Access::kUser), 0600U);
  EXPECT_EQ(mode_of(0777, Access::kUser), 0600U);
  EXPECT_EQ(mode_of(0, Access::kUmask), 0666U);
  EXPECT_EQ(mode_of(0027, Access::kUmask), 0640U);
}

TEST(AtomicFileTest, SaysWhereItCannotWriteAndWhatHelps) {
  EXPECT_THAT(
      ErrorOf([] { AtomicFile("/nowhere/at/all/file"); }),
      IsError(Code::kUnavailable, AllOf(HasSubstr("/nowhere/at/all/"), HasSubstr("No such file"),
                                        HasSubstr("check the path"))));
  EXPECT_THAT(ErrorOf([] { AtomicFile("/proc/file"); }),
              IsError(Code::kUnavailable, HasSubstr("/proc/")));
}

// F22: every call may fail, be cut short or be interrupted.
TEST(AtomicFileTest, F22ShortAndInterruptedWritesLoseNothing) {
  CrashFiles disk;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += std::to_string(i) + ",";
  for (const std::size_t most : {1U, 7U, 4096U}) {
    disk.CutWrites(most);
    AtomicFile file(disk, "/file");
    file.Write(text);
    file.Commit();
    EXPECT_EQ(TextOf(disk.Map("/file").bytes), text);
  }
}

TEST(AtomicFileTest, F22AnyStepThatFailsLeavesTheOldFileOrTheNewOne) {
  for (const auto& [error, has_unnamed] :
       {std::pair(EIO, true), {EIO, false}, {ENOSPC, true}, {EROFS, true}, {EDQUOT, false}}) {
    for (std::uint64_t step = 1;; ++step) {
      CrashFiles disk;
      disk.HaveUnnamed(has_unnamed);
      const auto write = [&](const char* text) {
        AtomicFile file(disk, "/file");
        file.Write(text);
        file.Commit();
      };
      write("old");
      const std::uint64_t before = disk.steps();
      disk.FailAt(step, error);
      try {
        write("new");
        EXPECT_GT(step, disk.steps() - before);
        break;
      } catch (const Error& thrown) {
        const bool is_full = error == ENOSPC || error == EDQUOT;
        EXPECT_EQ(thrown.code(), is_full ? Code::kResourceExhausted : Code::kUnavailable);
        EXPECT_THAT(thrown.what(), HasSubstr("; "));
      }
      const std::string found = TextOf(disk.Map("/file").bytes);
      EXPECT_TRUE(found == "old" || found == "new") << found;
      EXPECT_THAT(disk.List("/"), ElementsAre("file"));
    }
  }
}

// F21
TEST(AtomicFileTest, F21AFullDiskIsNamed) {
  CrashFiles disk;
  disk.SetRoom(10);
  AtomicFile file(disk, "/file");
  EXPECT_THAT(ErrorOf([&] { file.Write("more than ten bytes"); }),
              IsError(Code::kResourceExhausted,
                      AllOf(HasSubstr("/file"), HasSubstr("No space"), HasSubstr("make room"))));
}

// F23
TEST(AtomicFileTest, F23ACrashAtAnyPointLeavesTheOldFileOrTheNewOne) {
  const std::string old_text(3000, 'o');
  const std::string new_text(5000, 'n');
  const auto write = [](CrashFiles& disk, const std::string& text) {
    AtomicFile file(disk, "/file");
    file.Write(text);
    file.Commit();
  };
  for (const bool has_unnamed : {true, false}) {
    bool finished = false;
    for (std::uint64_t step = 1; !finished; ++step) {
      CrashFiles disk;
      disk.HaveUnnamed(has_unnamed);
      write(disk, old_text);
      disk.CrashAt(step);
      try {
        write(disk, new_text);
        finished = true;
      } catch (const Crash&) {
      }
      for (const auto mode :
           {CrashMode::kLost, CrashMode::kKept, CrashMode::kTorn, CrashMode::kRandom}) {
        for (std::uint64_t seed = 0; seed < 10; ++seed) {
          const auto after = disk.Reboot(mode, seed);
          const std::string found = TextOf(after->Map("/file").bytes);
          EXPECT_TRUE(found == new_text || (found == old_text && !finished)) << "step " << step;
        }
      }
    }
  }
}

// As long as it is written it has no name: no process that is killed leaves one behind.
TEST(AtomicFileTest, HasNoNameWhileItIsWritten) {
  const TestFolder folder;
  const Path path = folder.path() / "file";
  if (!RealFiles().CreateUnnamed(folder.path(), Access::kUser))
    GTEST_SKIP() << "the file system has no files without a name (O_TMPFILE)";
  WriteAllTo(path, "old");
  AtomicFile file(path);
  file.Write("new");
  EXPECT_THAT(folder.names(), ElementsAre("file"));
  EXPECT_EQ(ReadAll(path), "old");
  file.Commit();
  EXPECT_THAT(folder.names(), ElementsAre("file"));
  EXPECT_EQ(ReadAll(path), "new");
}

TEST(AtomicFileTest, SeveralMayWriteToOnePathAndTheLastCommitWins) {
  const TestFolder folder;
  const Path path = folder.path() / "file";
  AtomicFile first(path);
  AtomicFile second(path);
  first.Write("first");
  second.Write("second");
  second.CommitUnsynced();
  EXPECT_EQ(ReadAll(path), "second");
  first.Commit();
  EXPECT_EQ(ReadAll(path), "first");
  EXPECT_THAT(folder.names(), ElementsAre("file"));
}

// The crash model itself: what is not synced must be able to go.
TEST(CrashFilesTest, ForgetsWhatWasNotSynced) {
  CrashFiles disk;
  const auto write = [&](const char* name, bool sync_file, bool sync_folder) {
    const auto file = disk.Create(name, Access::kUser);
    WriteAll(*file, std::as_bytes(std::span("text", 4)), name);
    if (sync_file) file->Sync();
    if (sync_folder) disk.SyncFolder("/");
  };
  write("/name_only", false, true);
  write("/both", true, true);
  write("/data_only", true, false);
  const auto lost = disk.Reboot(CrashMode::kLost, 1);
  EXPECT_THAT(lost->List("/"), ElementsAre("both", "name_only"));
  EXPECT_EQ(TextOf(lost->Map("/both").bytes), "text");
  EXPECT_THAT(TextOf(lost->Map("/name_only").bytes), IsEmpty());
  EXPECT_EQ(disk.Reboot(CrashMode::kKept, 1)->List("/").size(), 3U);
  disk.Rename("/both", "/renamed");
  EXPECT_THAT(disk.Reboot(CrashMode::kLost, 1)->List("/"), ElementsAre("both", "name_only"));
  int kept = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto names = disk.Reboot(CrashMode::kRandom, seed)->List("/");
    const bool has_new = std::ranges::count(names, "renamed") == 1;
    EXPECT_NE(has_new, std::ranges::count(names, "both") == 1);
    kept += has_new ? 1 : 0;
  }
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, 50);
}

TEST(FileSystemTest, MakesFoldersThatOnlyTheUserMayEnter) {
  const TestFolder folder;
  MakeFolders(RealFiles(), folder.path() / "a/b/c/");
  struct stat info {};
  ASSERT_EQ(::stat((folder.path() / "a/b/c").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0700U);
  MakeFolders(RealFiles(), folder.path() / "a/b/c");
  WriteAllTo(folder.path() / "file", "x");
  EXPECT_THROW(MakeFolders(RealFiles(), folder.path() / "file"), Error);
}

TEST(FileSystemTest, ALockedFolderCannotBeLockedAgain) {
  const TestFolder folder;
  auto lock = RealFiles().TryLock(folder.path());
  EXPECT_TRUE(lock);
  EXPECT_FALSE(RealFiles().TryLock(folder.path()));
  lock.reset();
  EXPECT_TRUE(RealFiles().TryLock(folder.path()));
  EXPECT_FALSE(RealFiles().TryLock(folder.path() / "missing"));
}

TEST(FileSystemTest, RefusesToMapWhatIsNoFile) {
  const TestFolder folder;
  EXPECT_THAT(ErrorOf([&] { RealFiles().Map(folder.path()); }),
              IsError(Code::kUnavailable, HasSubstr("folder")));
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(ErrorOf([&] { RealFiles().Map(folder.path() / "pipe"); }),
              IsError(Code::kUnavailable, HasSubstr("regular")));
  WriteAllTo(folder.path() / "empty", "");
  EXPECT_TRUE(RealFiles().Map(folder.path() / "empty").bytes.empty());
}

}  // namespace
}  // namespace orca::io
