#include "orca/io/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cmath>
#include <limits>

#include "io/event_record.h"
#include "io/folder.h"
#include "net/expect_error.h"
#include "testing/crash_files.h"

namespace orca::io {
namespace {

using orca::testing::CrashFiles;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::string Hex(const std::vector<std::byte>& bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", std::to_integer<unsigned>(byte));
    text += digits;
  }
  return text;
}

// Calculated by hand from the descriptions of the formats: length, event, in hexadecimal.
TEST(EventFileTest, RecordsAreAsTheFormatHasThem) {
  const std::string version = Hex(EncodeFileVersion(1.0));
  EXPECT_EQ(version.substr(0, 16), "1800000000000000");  // 24 bytes
  EXPECT_EQ(version.substr(24, 48),
            "09000000000000f03f"                // 1: wall_time, 1.0
            "1a0d627261696e2e4576656e743a32");  // 3: file_version, "brain.Event:2"
  const std::string scalar = Hex(EncodeScalar("a", {.step = 300, .value = 0.5, .wall_time = 2.0}));
  EXPECT_EQ(scalar.substr(24, scalar.size() - 32),
            "090000000000000040"  // 1: wall_time, 2.0
            "10ac02"              // 2: step, 300
            "2a0a"                // 5: summary
            "0a08"                // 1: value
            "0a0161"              // 1: tag, "a"
            "150000003f");        // 2: simple_value, 0.5
}

// What the protocol buffers of TensorBoard 2.21 make of the same.
TEST(EventFileTest, HyperParametersAreAsTheFormatHasThem) {
  const auto records = EncodeHparams({.hparams = {{"a", true}, {"b", 0.5}, {"c", std::string("d")}},
                                      .has_failed = true,
                                      .began = 1},
                                     2.0);
  ASSERT_THAT(records, SizeIs(2));
  const std::string start = Hex(records[0]);
  EXPECT_EQ(start.substr(24, start.size() - 32),
            "090000000000000040"                    // 1: wall_time, 2.0
            "2a5d0a5b"                              // 5: summary, 1: value
            "0a1c5f68706172616d735f2f"              // 1: tag, "_hparams_/
            "73657373696f6e5f73746172745f696e666f"  // session_start_info"
            "4a3b0a39"                              // 9: metadata, 1: plugin_data
            "0a0768706172616d73"                    // 1: plugin_name, "hparams"
            "122e1a2c"                              // 2: content, 3: session_start_info
            "0a070a016112022001"                    // 1: hparams, "a": 4: true
            "0a0e0a0162120911000000000000e03f"      // "b": 2: 0.5
            "0a080a016312031a0164"                  // "c": 3: "d"
            "29000000000000f03f");                  // 5: start_time_secs, 1.0
  const std::string end = Hex(records[1]);
  EXPECT_THAT(end, HasSubstr("220b0802110000000000000040"));  // 4: 1: failure, 2: 2.0
}

TEST(EventFileTest, ScalarsComeBackAsTheyWere) {
  const TestFolder folder;
  EventWriter writer(folder.path() / "train");
  EXPECT_THAT(writer.path().filename().string(), StartsWith("events.out.tfevents."));
  for (int i = 0; i < 100; ++i) {
    writer.AddScalar("Loss", 1.0 / (i + 1), i * 1000, 1e9 + i);
    writer.AddScalar("LearningRate", 0.1, i);
  }
  const auto losses = ReadScalars(folder.path() / "train", "Loss");
  ASSERT_THAT(losses, SizeIs(100));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(losses[static_cast<std::size_t>(i)].step, i * 1000);
    EXPECT_EQ(losses[static_cast<std::size_t>(i)].value, static_cast<float>(1.0 / (i + 1)));
    EXPECT_EQ(losses[static_cast<std::size_t>(i)].wall_time, 1e9 + i);
  }
  EXPECT_THAT(ReadScalars(folder.path() / "train", "LearningRate"), SizeIs(100));
  EXPECT_THAT(ReadScalars(folder.path() / "train", "other"), SizeIs(0));
  EXPECT_THAT(ReadScalars(folder.path() / "missing", "Loss"), SizeIs(0));
}

TEST(EventFileTest, ValuesOfAStepComeBackWhereverTheFolderIs) {
  const TestFolder folder;
  const Path missing = folder.path() / "a" / "b";
  EventWriter writer(missing);
  writer.AddScalars({{"Loss", 0.5}, {"Rate", 0.25}}, 7);
  writer.AddScalars({}, 8);
  for (const auto& [tag, value] : {std::pair("Loss", 0.5), std::pair("Rate", 0.25)}) {
    const auto found = ReadScalars(missing, tag);
    ASSERT_THAT(found, SizeIs(1));
    EXPECT_EQ(found[0].step, 7);
    EXPECT_EQ(found[0].value, value);
    EXPECT_GT(found[0].wall_time, 1e9);
  }
}

TEST(EventFileTest, CurvesBeginWithStepZero) {
  TestFolder folder;
  EventWriter writer(folder.path());
  writer.AddCurves({{"Loss", {0.5, std::numeric_limits<double>::quiet_NaN(), 0.25}}, {"None", {}}});
  const auto scalars = ReadScalars(folder.path(), "Loss");
  ASSERT_THAT(scalars, SizeIs(2));
  EXPECT_EQ(scalars[0].step, 0);
  EXPECT_EQ(scalars[1].step, 2);
  EXPECT_EQ(scalars[1].value, 0.25);
  EXPECT_THAT(ReadScalars(folder.path(), "None"), SizeIs(0));
}

TEST(EventFileTest, ExtremeValuesComeBack) {
  CrashFiles disk;
  EventWriter writer("/e", disk);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  writer.AddScalar("x", kInfinity, std::numeric_limits<std::int64_t>::max());
  writer.AddScalar("x", std::nan(""), std::numeric_limits<std::int64_t>::min());
  writer.AddScalar("x", 1e300, 0);  // too large for the format's float
  const auto found = ReadScalars("/e", "x", disk);
  ASSERT_THAT(found, SizeIs(3));
  EXPECT_EQ(found[0].value, kInfinity);
  EXPECT_EQ(found[0].step, std::numeric_limits<std::int64_t>::max());
  EXPECT_TRUE(std::isnan(found[1].value));
  EXPECT_EQ(found[1].step, std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(found[2].value, kInfinity);
}

TEST(EventFileTest, ADamagedFileIsReadUpToThere) {
  CrashFiles disk;
  EventWriter writer("/e", disk);
  for (int i = 0; i < 3; ++i) writer.AddScalar("x", i, i, 1);
  auto& bytes = disk.Content(writer.path());
  const auto whole = bytes;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    bytes[at] ^= std::byte{0x10};
    const auto flipped = ReadScalars("/e", "x", disk);
    ASSERT_LT(flipped.size(), 3U);
    for (std::size_t i = 0; i < flipped.size(); ++i)
      EXPECT_EQ(flipped[i].step, static_cast<std::int64_t>(i));
    bytes.resize(at);
    EXPECT_LT(ReadScalars("/e", "x", disk).size(), 3U);
    bytes = whole;
  }
  EXPECT_THAT(ReadScalars("/e", "x", disk), SizeIs(3));
}

// F21: the run goes on, and what is there can be read.
TEST(EventFileTest, F21AFullDiskCostsEventsAndNotTheFile) {
  for (std::uint64_t room = 100; room < 200; room += 7) {
    CrashFiles disk;
    EventWriter writer("/e", disk);
    disk.SetRoom(room);
    for (int i = 0; i < 5; ++i) writer.AddScalar("x", i, i);
    EXPECT_THAT(ErrorOf([&] { writer.Sync(); }),
                IsError(Code::kResourceExhausted, HasSubstr("No space")));
    disk.SetRoom(1'000'000);
    writer.AddScalar("x", 5, 5);
    writer.Sync();
    EXPECT_THAT(ReadScalars("/e", "x", disk), SizeIs(6)) << room;
  }
}

TEST(EventFileTest, F21WhatWaitsForRoomIsLimited) {
  CrashFiles disk;
  EventWriter writer("/e", disk);
  disk.SetRoom(0);
  const std::string tag(1000, 't');
  for (int i = 0; i < 5000; ++i) writer.AddScalar(tag, i, i);
  disk.SetRoom(100'000'000);
  writer.AddScalar(tag, 7, 7);
  writer.Sync();
  const auto found = ReadScalars("/e", tag, disk);
  EXPECT_GT(found.size(), 900U);
  EXPECT_LT(found.size(), 1100U);
  EXPECT_EQ(found.back().step, 7);
}

TEST(EventFileTest, F22InterruptedWritesLoseNothing) {
  CrashFiles disk;
  EventWriter writer("/e", disk);
  disk.CutWrites(3);
  for (int i = 0; i < 50; ++i) writer.AddScalar("x", i, i);
  EXPECT_THAT(ReadScalars("/e", "x", disk), SizeIs(50));
}

}  // namespace
}  // namespace orca::io
