#include "orca/learn/undo_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "orca/core/error.h"
#include "testing/seed.h"
#include "testing/stamps.h"

namespace orca::learn {
namespace {

using testing::RunAndDie;
using testing::SharedBytes;

constexpr std::uint64_t kNote = 24;

std::vector<std::byte> Copied(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

/// Two regions that two workers share, each one half of both.
class UndoLogTest : public ::testing::Test {
 protected:
  UndoLogTest() : first_(640), second_(1280), log_(UndoLog::BlockSize(Shape())) {
    std::mt19937_64 random(testing::TestSeed());
    for (const auto region : {first_.bytes(), second_.bytes()})
      for (std::byte& byte : region) byte = static_cast<std::byte>(random());
  }

  static UndoLog::Shape Shape() {
    return {.world = 2, .pieces = 4, .note = kNote, .regions = {640, 1280}};
  }
  UndoLog Open() { return {log_.bytes(), Shape(), {first_.bytes(), second_.bytes()}}; }
  static std::vector<UndoLog::Piece> PiecesOf(int rank) {
    const auto at = static_cast<std::uint64_t>(rank);
    return {{0, at * 320, 320}, {1, at * 640, 640}};
  }
  void Change(int rank) {
    for (const UndoLog::Piece& piece : PiecesOf(rank)) {
      auto region = piece.region == 0 ? first_.bytes() : second_.bytes();
      for (std::byte& byte : region.subspan(piece.offset, piece.bytes)) byte ^= std::byte{0x5a};
      learn::Stamp();
    }
  }
  std::vector<std::byte> Everything() {
    auto all = Copied(first_.bytes());
    std::ranges::copy(second_.bytes(), std::back_inserter(all));
    return all;
  }

  SharedBytes first_, second_, log_;
};

TEST_F(UndoLogTest, PutsBackWhateverAWorkerHadDone) {
  int deaths = 0;
  std::uint64_t number = 1;
  for (int stamp = 0;; ++stamp) {
    const auto before = Everything();
    // The other one has finished its share, or has not begun.
    if (stamp % 2 == 0) {
      auto log = Open();
      log.Save(1, number + 1, PiecesOf(1));
      Change(1);
    }
    const bool ended = RunAndDie(stamp, [&] {
      auto log = Open();
      log.Save(0, number + 1, PiecesOf(0));
      Change(0);
    });
    if (!ended) ++deaths;
    // Whoever puts back may die as well.
    for (int again = 0; !RunAndDie(again, [&] { Open().PutBack(number); }); ++again) {
    }
    ASSERT_EQ(Everything(), before) << stamp;
    if (ended) break;
    ++number;
  }
  EXPECT_GT(deaths, 4);
}

TEST_F(UndoLogTest, LeavesAloneWhatWasCommitted) {
  auto log = Open();
  log.Save(0, 5, PiecesOf(0));
  Change(0);
  const auto after = Everything();
  EXPECT_EQ(log.PutBack(5), 0);
  EXPECT_EQ(Everything(), after);
  EXPECT_EQ(log.PutBack(4), 1);
  EXPECT_NE(Everything(), after);
}

TEST_F(UndoLogTest, HasTheNotesOfTheLastCommitWhileTheNextOnesAreWritten) {
  const auto note = [](int value) {
    std::array<std::byte, kNote> bytes{};
    bytes.fill(static_cast<std::byte>(value));
    return bytes;
  };
  const auto write = [&](UndoLog& log, std::uint64_t number) {
    const auto bytes = note(static_cast<int>(number));
    const std::array<std::span<const std::byte>, 2> parts = {std::span(bytes).first(8),
                                                             std::span(bytes).subspan(8)};
    log.Note(1, number, parts);
  };
  auto log = Open();
  for (std::uint64_t number = 1; number < 20; ++number) {
    write(log, number);
    for (int stamp = 0;; ++stamp) {
      const bool ended = RunAndDie(stamp, [&] {
        auto mine = Open();
        write(mine, number + 1);
        write(mine, number + 2);
      });
      const auto expected = note(static_cast<int>(number));
      ASSERT_TRUE(std::ranges::equal(Open().NoteOf(1, number), expected));
      if (ended) break;
    }
  }
  EXPECT_THROW(log.NoteOf(0, 1), Error);
  EXPECT_THROW(log.NoteOf(1, 30), Error);
}

TEST_F(UndoLogTest, RefusesWhatDoesNotFit) {
  auto log = Open();
  const std::vector<UndoLog::Piece> beyond = {{0, 600, 41}};
  EXPECT_THROW(log.Save(0, 1, beyond), Error);
  const std::vector<UndoLog::Piece> elsewhere = {{2, 0, 1}};
  EXPECT_THROW(log.Save(0, 1, elsewhere), Error);
  EXPECT_THROW(log.Save(0, 1, std::vector<UndoLog::Piece>(5)), Error);
  EXPECT_THROW(log.Note(0, 1, {}), Error);
  EXPECT_THROW(UndoLog(log_.bytes().first(64), Shape(), {first_.bytes(), second_.bytes()}), Error);
  EXPECT_THROW(UndoLog(log_.bytes(), Shape(), {first_.bytes()}), Error);
  EXPECT_THROW(UndoLog(log_.bytes(), Shape(), {first_.bytes(), first_.bytes()}), Error);
}

}  // namespace
}  // namespace orca::learn
