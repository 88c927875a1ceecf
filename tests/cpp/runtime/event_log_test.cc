#include "orca/runtime/event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "orca/core/crc32c.h"
#include "orca/core/error.h"
#include "runtime/process.h"

namespace orca::runtime {
namespace {

namespace fs = std::filesystem;

class EventLogTest : public ::testing::Test {
 protected:
  EventLogTest() {
    std::string folder = ::testing::TempDir() + "orca-log-XXXXXX";
    home_ = ::mkdtemp(folder.data());
    ::setenv("ORCA_HOME", home_.c_str(), 1);
  }
  ~EventLogTest() override {
    ::unsetenv("ORCA_HOME");
    fs::remove_all(home_);
  }
  fs::path home_;
};

/// What "orca ..." prints, and its status.
std::pair<std::string, int> Command(const std::string& arguments) {
  FILE* pipe = ::popen((std::string(ORCA_TEST_AGENT) + " " + arguments + " 2>&1").c_str(), "r");
  std::string text;
  std::array<char, 4096> block{};
  for (std::size_t read = 0; (read = std::fread(block.data(), 1, block.size(), pipe)) > 0;)
    text.append(block.data(), read);
  return {text, ::pclose(pipe)};
}

Record Numbered(int i) {
  return {.time = 1000.5 + i,
          .what = "step",
          .rank = i % 3,
          .text = std::string(static_cast<std::size_t>(i % 50), 'x') + "\xc3\xa9",
          .numbers = {{"loss", 1.0 / (i + 1)}, {"step", i}}};
}

void ExpectEqual(const Record& a, const Record& b) {
  EXPECT_EQ(a.time, b.time);
  EXPECT_EQ(a.what, b.what);
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.numbers, b.numbers);
}

TEST_F(EventLogTest, AReaderFollowsWhatIsWritten) {
  EventLog log = EventLog::Create(home_ / "log");
  EventReader reader(home_ / "log");
  EXPECT_FALSE(reader.Next());
  for (int i = 0; i < 1000; ++i) {
    log.Append(Numbered(i));
    if (i % 7 != 0) continue;
    static int next = 0;
    while (const auto record = reader.Next()) ExpectEqual(*record, Numbered(next++));
    EXPECT_EQ(next, i + 1);
  }
}

// A reader follows words on its stack: "orca ps" reads the logs of all runs.
TEST_F(EventLogTest, ARecordThatNestsDeepEndsTheLogAndNotTheReader) {
  const std::vector<std::uint8_t> body((std::size_t{1} << 20) - 1, 0x91);
  std::vector<std::byte> bytes = Encode(Numbered(0));
  const std::array<std::uint32_t, 2> head{static_cast<std::uint32_t>(body.size()),
                                          Crc32c(body.data(), body.size())};
  const std::array<std::span<const std::byte>, 2> parts{std::as_bytes(std::span(head)),
                                                        std::as_bytes(std::span(body))};
  for (const auto part : parts) bytes.insert(bytes.end(), part.begin(), part.end());
  const RunFolder run = NewRunFolder("deep", 10);
  std::ofstream(run.path / "events.log", std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  EventReader reader(run.path / "events.log");
  ExpectEqual(*reader.Next(), Numbered(0));
  EXPECT_FALSE(reader.Next());
  EXPECT_TRUE(reader.damaged());
  EXPECT_EQ(Summarize(run).state, "lost");
  const auto [text, status] = Command("ps");
  EXPECT_EQ(status, 0);
  EXPECT_THAT(text, ::testing::HasSubstr("deep"));
  EXPECT_EQ(Command("logs deep").second, 0);
}

TEST_F(EventLogTest, TheCommandPrintsNoWordsThatSteerTheTerminal) {
  const RunFolder run = NewRunFolder("noisy", 10);
  const std::string words = "a\x1b]0;title\x07\x1b[2J\tb\xc2\x9bm\nnext \xc3\xa4";
  {
    EventLog log = EventLog::Create(run.path / "events.log");
    log.Append({.time = 1, .what = "output", .rank = 0, .text = words});
    log.Append({.time = 1, .what = "failed\x1b[31m", .rank = 1, .text = words});
  }
  const auto [text, status] = Command("logs noisy");
  EXPECT_EQ(status, 0);
  EXPECT_THAT(text, ::testing::HasSubstr("[rank 0] a ]0;title  [2J b  m\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("[rank 0] next \xc3\xa4\n"));
  for (const char* bad : {"\x1b", "\x07", "\xc2\x9b"})
    EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr(bad)));
}

TEST_F(EventLogTest, ATornTailIsSkippedAndReadWhenItIsCompleted) {
  std::vector<std::byte> bytes;
  for (int i = 0; i < 3; ++i) {
    const auto record = Encode(Numbered(i));
    bytes.insert(bytes.end(), record.begin(), record.end());
  }
  const std::size_t two = Encode(Numbered(0)).size() + Encode(Numbered(1)).size();
  for (std::size_t cut = two; cut < bytes.size(); ++cut) {
    const fs::path path = home_ / ("torn" + std::to_string(cut));
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(cut));
    EventReader reader(path);
    ExpectEqual(*reader.Next(), Numbered(0));
    ExpectEqual(*reader.Next(), Numbered(1));
    EXPECT_FALSE(reader.Next());
    EXPECT_FALSE(reader.damaged());
    std::ofstream(path, std::ios::binary | std::ios::app)
        .write(reinterpret_cast<const char*>(bytes.data()) + cut,
               static_cast<std::streamsize>(bytes.size() - cut));
    ExpectEqual(*reader.Next(), Numbered(2));
  }
}

TEST_F(EventLogTest, FlippedBytesNeverGiveAWrongRecord) {
  std::vector<std::byte> bytes;
  for (int i = 0; i < 3; ++i) {
    const auto record = Encode(Numbered(i));
    bytes.insert(bytes.end(), record.begin(), record.end());
  }
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    auto damaged = bytes;
    damaged[at] ^= std::byte{0x41};
    const fs::path path = home_ / "flipped";
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(damaged.data()),
               static_cast<std::streamsize>(damaged.size()));
    EventReader reader(path);
    int count = 0;
    while (const auto record = reader.Next()) ExpectEqual(*record, Numbered(count++));
    EXPECT_LT(count, 3);
  }
}

TEST_F(EventLogTest, TheLastRunsAreKept) {
  for (int i = 0; i < 12; ++i) {
    const RunFolder run = NewRunFolder("run-" + std::to_string(100 + i), 10);
    struct stat info {};
    ASSERT_EQ(::stat(run.path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700U);
  }
  const auto runs = ListRuns();
  ASSERT_EQ(runs.size(), 10U);
  EXPECT_EQ(FindRun("run-111").id, "run-111");
  EXPECT_THROW(FindRun("run-1"), Error);
  EXPECT_THROW(FindRun("nothing"), Error);
}

TEST_F(EventLogTest, AFolderThatAnotherUserMadeFirstIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes files of another user";
  constexpr ::uid_t kAnother = 65534;
  const auto refusal = [] {
    try {
      NewRunFolder("run");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("it was used");
  };
  fs::create_directories(home_ / "runs");
  ASSERT_EQ(::chown((home_ / "runs").c_str(), kAnother, kAnother), 0);
  EXPECT_THAT(refusal(),
              ::testing::HasSubstr("runs belongs to another user (uid 65534); set ORCA_HOME"));
  ::unsetenv("ORCA_HOME");
  const std::string before = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  ::setenv("HOME", home_.c_str(), 1);
  fs::create_directory(home_ / ".orca");
  ASSERT_EQ(::chown((home_ / ".orca").c_str(), kAnother, kAnother), 0);
  EXPECT_THAT(refusal(), ::testing::HasSubstr(".orca belongs to another user"));
  ::setenv("HOME", before.c_str(), 1);
}

TEST_F(EventLogTest, WithoutHomeRunsAreInTheUsersOwnHome) {
  ::unsetenv("ORCA_HOME");
  const std::string before = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  ::unsetenv("HOME");
  const fs::path found = RunsFolder();
  ::setenv("HOME", before.c_str(), 1);
  const ::passwd* const entry = ::getpwuid(::geteuid());
  const fs::path expected = entry != nullptr ? fs::path(entry->pw_dir) / ".orca"
                                             : fs::path("/tmp/orca-" + std::to_string(::geteuid()));
  EXPECT_EQ(found, expected / "runs");
}

TEST_F(EventLogTest, ARunWhoseDriverIsGoneIsLost) {
  const auto write = [&](const std::string& id, double pid, double started, bool stopped) {
    const RunFolder run = NewRunFolder(id);
    EventLog log = EventLog::Create(run.path / "events.log");
    log.Append({.what = "context", .numbers = {{"pid", pid}, {"started", started}, {"cores", 2}}});
    log.Append({.what = "call", .numbers = {{"call", 1}, {"attempt", 0}}});
    log.Append({.what = "call", .numbers = {{"call", 1}, {"attempt", 1}}});
    if (stopped) log.Append({.what = "stopped"});
    return Summarize(run);
  };
  const double me = StartTime(::getpid());
  EXPECT_GT(me, 0);
  EXPECT_EQ(write("a", ::getpid(), me, false).state, "running");
  EXPECT_EQ(write("b", ::getpid(), me - 1, false).state, "lost");  // another process had the number
  EXPECT_EQ(write("c", 4'000'000, 5, false).state, "lost");
  EXPECT_EQ(write("d", ::getpid(), me, true).state, "stopped");
  EXPECT_EQ(Summarize(FindRun("a")).calls, 1);
}

}  // namespace
}  // namespace orca::runtime
