#include "orca/tune/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "orca/core/error.h"
#include "testing/folder.h"
#include "testing/processes.h"
#include "testing/seed.h"
#include "tune/sqlite.h"

namespace orca::tune {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

template <typename Function>
std::string ErrorOf(Function function, Code code = Code::kFailedPrecondition) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

std::string Bytes(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

Event Start(std::int64_t trial, std::string config = "{}") {
  return {.kind = EventKind::kStart, .trial = trial, .config = std::move(config)};
}

Event Finish(std::int64_t trial, double value) {
  return {.kind = EventKind::kFinish, .trial = trial, .value = value};
}

class StoreTest : public ::testing::Test {
 protected:
  StudyStore OpenFile() {
    return StudyStore::Open(file_, {.clock = [this] { return now_ += 1; }});
  }

  TestFolder folder_;
  std::filesystem::path file_ = folder_.path() / "study.db";
  double now_ = 1000;
};

TEST_F(StoreTest, TheLastReportWaitsForWhatIsDecidedOverIt) {
  StudyStore store = OpenFile();
  store.Create({.name = "first", .metric = "loss", .mode = "min"});
  store.Commit(Start(0));
  const StudyStore reader = StudyStore::OpenToRead(file_);
  std::size_t most = 0;
  for (std::int64_t step = 1; step <= 2500; ++step) {
    store.Report(0, step, 0.5);
    if (step % 1000 > 1 && step % 250 != 0) continue;  // All are read each time.
    const std::size_t stored = reader.Reports(1).size();
    ASSERT_LT(stored, static_cast<std::size_t>(step));
    most = std::max(most, stored);
  }
  EXPECT_EQ(most, 2000U);
}

TEST_F(StoreTest, WhatWasCommittedIsThereAgain) {
  {
    StudyStore store = OpenFile();
    EXPECT_THAT(store.Studies(), IsEmpty());
    const auto made = store.Create(
        {.name = "first", .metric = "loss", .mode = "min", .metadata = R"({"seed": 3})"});
    EXPECT_EQ(made.id, 1);
    store.Commit(Start(0, R"({"lr": "0.1 — ä"})"));
    store.Report(0, 1, 0.5);
    store.Report(0, 2, std::numeric_limits<double>::quiet_NaN());
    store.Report(0, 3, std::numeric_limits<double>::infinity());
    store.Commit({.kind = EventKind::kPause, .trial = 0, .step = 3});
    const std::vector<Event> two{Start(1), {.kind = EventKind::kFail, .trial = 1, .error = "boom"}};
    const std::vector<Attribute> attributes{{-1, "sampler", "[1]"}, {0, "note", "\"x\""}};
    store.Commit(two, attributes);
    store.Commit({.kind = EventKind::kResume, .trial = 0});
    store.Commit(Finish(0, 0.25));
  }
  const StudyStore store = StudyStore::OpenToRead(file_);
  const auto studies = store.Studies();
  ASSERT_THAT(studies, SizeIs(1));
  EXPECT_EQ(studies[0].name, "first");
  EXPECT_EQ(studies[0].metric, "loss");
  EXPECT_EQ(studies[0].mode, "min");
  EXPECT_EQ(studies[0].metadata, R"({"seed": 3})");
  EXPECT_EQ(studies[0].created, 1001);

  const auto trials = store.Trials(1);
  ASSERT_THAT(trials, SizeIs(2));
  EXPECT_EQ(trials[0].state, TrialState::kFinished);
  EXPECT_EQ(trials[0].config, R"({"lr": "0.1 — ä"})");
  EXPECT_EQ(trials[0].value, 0.25);
  EXPECT_EQ(trials[0].started, 1002);
  EXPECT_GT(trials[0].ended, trials[0].started);
  EXPECT_EQ(trials[1].state, TrialState::kFailed);
  EXPECT_EQ(trials[1].error, "boom");
  EXPECT_TRUE(std::isnan(trials[1].value));

  const auto reports = store.Reports(1);
  ASSERT_THAT(reports, SizeIs(3));
  EXPECT_EQ(reports[0].step, 1);
  EXPECT_EQ(reports[0].value, 0.5);
  EXPECT_TRUE(std::isnan(reports[1].value));
  EXPECT_EQ(reports[2].value, std::numeric_limits<double>::infinity());
  EXPECT_THAT(store.Reports(1, 1), IsEmpty());

  const auto events = store.Events(1);
  std::string kinds;
  for (const auto& event : events) kinds += std::string(EventKindName(event.kind)) + " ";
  EXPECT_EQ(kinds, "start pause start fail resume finish ");
  // Reports and decisions have one order.
  EXPECT_LT(events[0].sequence, reports[0].sequence);
  EXPECT_LT(reports[2].sequence, events[1].sequence);
  const auto attributes = store.Attributes(1);
  ASSERT_THAT(attributes, SizeIs(2));
  EXPECT_EQ(attributes[0].value, "[1]");
  EXPECT_EQ(attributes[1].trial, 0);
}

TEST_F(StoreTest, ResumeGoesOnAndCreateBeginsBeside) {
  {
    StudyStore store = OpenFile();
    EXPECT_FALSE(store.Resume("a").has_value());
    store.Create({.name = "a"});
    store.Commit(Start(0));
    store.Create({.name = "a"});
    store.Commit(Start(0));
    store.Commit(Start(1));
    store.Create({.name = "b"});
  }
  StudyStore store = OpenFile();
  const auto found = store.Resume("a");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->id, 2);
  store.Report(1, 1, 0.5);
  store.Commit(Finish(1, 0.5));
  EXPECT_THAT(store.Trials(1), SizeIs(1));
  EXPECT_THAT(store.Trials(2), SizeIs(2));
  EXPECT_THAT(store.Reports(2), SizeIs(1));
  EXPECT_THAT(store.Reports(1), IsEmpty());
}

TEST_F(StoreTest, AClonesStepsAreNotThoseBefore) {
  StudyStore store = OpenFile();
  store.Create({.name = "pbt"});
  store.Commit(Start(0));
  store.Commit(Start(1));
  store.Report(1, 1, 0.1);
  store.Report(1, 2, 0.2);
  store.Report(1, 2, 0.9);  // again: it keeps its value
  store.Commit({.kind = EventKind::kSave, .trial = 0, .step = 1});
  store.Commit({.kind = EventKind::kPause, .trial = 1, .step = 2});
  store.Commit({.kind = EventKind::kResume,
                .trial = 1,
                .config = R"({"lr": 2})",
                .source = 0,
                .source_step = 1});
  store.Report(1, 2, 0.7);
  store.Flush();
  const auto reports = store.Reports(1, 1);
  ASSERT_THAT(reports, SizeIs(3));
  EXPECT_EQ(reports[1].value, 0.2);
  EXPECT_EQ(reports[2].value, 0.7);
  EXPECT_EQ(reports[2].clones, 1);
  EXPECT_EQ(store.Trials(1)[1].config, R"({"lr": 2})");
  EXPECT_EQ(store.Events(1)[4].source_step, 1);
}

TEST_F(StoreTest, DecisionsThatDoNotFitAreRefusedAndChangeNothing) {
  StudyStore store = OpenFile();
  EXPECT_THAT(ErrorOf([&] { store.Commit(Start(0)); }), HasSubstr("call Create or Resume"));
  EXPECT_THAT(ErrorOf([&] { store.Create({.mode = "up"}); }, Code::kInvalidArgument),
              HasSubstr("\"up\""));
  store.Create({.name = "a"});
  store.Commit(Start(0));
  EXPECT_THAT(ErrorOf([&] { store.Commit(Start(0)); }), HasSubstr("trial 0, which is running"));
  EXPECT_THAT(ErrorOf([&] { store.Commit(Finish(7, 1)); }),
              HasSubstr("trial 7, which is not there"));
  EXPECT_THAT(ErrorOf([&] { store.Commit({.kind = EventKind::kResume, .trial = 0}); }),
              HasSubstr("\"resume\" does not fit trial 0"));
  const std::vector<Event> half{Start(1), Start(0)};
  ErrorOf([&] { store.Commit(half); });
  EXPECT_THAT(store.Trials(1), SizeIs(1));
  EXPECT_THAT(ErrorOf([&] { store.Report(1, 1, 1); }), HasSubstr("trial 1 is not running"));
  store.Commit(Finish(0, 1));
  EXPECT_THAT(ErrorOf([&] { store.Commit(Finish(0, 2)); }), HasSubstr("which is finished"));
  EXPECT_THAT(ErrorOf([&] { store.Report(0, 1, 1); }), HasSubstr("trial 0 is not running"));
  EXPECT_EQ(store.Trials(1)[0].value, 1);
  EXPECT_THAT(store.Events(1), SizeIs(2));
  StudyStore reader = StudyStore::OpenToRead(file_);
  EXPECT_THAT(ErrorOf([&] { reader.Create({.name = "x"}); }), HasSubstr("opened to read"));
}

TEST_F(StoreTest, ReadersSeeWhatIsCommittedWhileItIsWritten) {
  StudyStore store = OpenFile();
  store.Create({.name = "a"});
  const StudyStore reader = StudyStore::OpenToRead(file_);
  for (std::int64_t trial = 0; trial < 50; ++trial) {
    store.Commit(Start(trial));
    EXPECT_THAT(reader.Trials(1), SizeIs(static_cast<std::size_t>(trial + 1)));
  }
}

TEST_F(StoreTest, F48TheSecondWriterIsRefusedByNameUntilTheFirstIsDead) {
  testing::Child first([&](const testing::Voice& voice) {
    StudyStore store = StudyStore::Open(file_);
    store.Create({.name = "a"});
    store.Commit(Start(0));
    voice.Tell("open");
    ::alarm(60);
    ::pause();
  });
  ASSERT_EQ(first.Listen(), "open");
  EXPECT_THAT(ErrorOf([&] { OpenFile(); }),
              HasSubstr("being written by process " + std::to_string(first.pid())));
  EXPECT_THAT(StudyStore::OpenToRead(file_).Trials(1), SizeIs(1));
  first.Signal(SIGKILL);
  first.Wait();
  StudyStore store = OpenFile();
  EXPECT_TRUE(store.Resume("a").has_value());
  EXPECT_THAT(store.Trials(1), SizeIs(1));
  EXPECT_THAT(ErrorOf([&] { OpenFile(); }), HasSubstr("(this one)"));
  EXPECT_THAT(ErrorOf([&] { OpenFile(); }), HasSubstr("(this one)"));  // the refusal took no lock
  // A child that is forked meanwhile holds nothing up.
  testing::Child child([&](const testing::Voice& voice) {
    voice.Tell("forked");
    ::alarm(60);
    ::pause();
  });
  ASSERT_EQ(child.Listen(), "forked");
  store = StudyStore::OpenToRead(file_);
  EXPECT_NO_THROW(OpenFile());
}

TEST_F(StoreTest, ForeignAndNewerFilesAreRefusedAndStayAsTheyAre) {
  const auto refused = [&] {
    const std::string to_read = ErrorOf([&] { StudyStore::OpenToRead(file_); });
    std::string to_write = ErrorOf([&] { OpenFile(); });
    EXPECT_EQ(to_read, to_write);
    return to_write;
  };
  std::ofstream(file_) << std::string(5000, 'x');
  EXPECT_THAT(refused(), HasSubstr("is no file of studies"));
  EXPECT_THAT(ErrorOf([&] { SalvageStudies(file_); }), HasSubstr("nothing can be read"));
  EXPECT_EQ(std::filesystem::file_size(file_), 5000U);
  std::filesystem::remove(file_);
  {
    Database other(file_, Database::Access::kWrite);
    other.Run("CREATE TABLE t (x)");
  }
  EXPECT_THAT(refused(), HasSubstr("is no file of studies"));
  std::filesystem::remove(file_);
  OpenFile().Create({.name = "a"});
  Database(file_, Database::Access::kWrite).Run("PRAGMA user_version=3");
  EXPECT_THAT(refused(), HasSubstr("has format 3; this build reads up to 2"));
  EXPECT_THAT(ErrorOf([&] { StudyStore::OpenToRead(folder_.path() / "none"); }, Code::kUnavailable),
              HasSubstr("none: "));
  EXPECT_THAT(ErrorOf([&] { StudyStore::Open(folder_.path() / "no/such"); }, Code::kUnavailable),
              HasSubstr("see that the folder is there"));
  { const std::ofstream empty(folder_.path() / "empty"); }
  EXPECT_THAT(
      ErrorOf([&] { StudyStore::OpenToRead(folder_.path() / "empty"); }, Code::kUnavailable),
      HasSubstr("has no studies yet"));
  EXPECT_NO_THROW(StudyStore::Open(folder_.path() / "empty"));
}

TEST_F(StoreTest, FilesWithAnythingThatIsComputedAreRefused) {
  const std::string endless =
      "AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c;";
  for (const std::string& change :
       {"DROP TABLE reports; CREATE VIEW reports " + endless, "CREATE VIEW other " + endless,
        std::string("CREATE TRIGGER t AFTER INSERT ON trials BEGIN DELETE FROM reports; END"),
        std::string("ALTER TABLE trials ADD COLUMN big AS (zeroblob(1000000000))")}) {
    std::filesystem::remove(file_);
    OpenFile().Create({.name = "a"});
    Database(file_, Database::Access::kWrite).Run(change.c_str());
    for (const auto& open : {std::function<void()>([&] { StudyStore::OpenToRead(file_); }),
                             std::function<void()>([&] { OpenFile(); })})
      EXPECT_THAT(ErrorOf(open), HasSubstr("has a view, a trigger, or a column")) << change;
  }
}

TEST_F(StoreTest, AReaderDoesNotFollowRowsWithoutAnEnd) {
  OpenFile().Create({.name = "a"});
  const Database database(file_, Database::Access::kRead);
  Statement endless(database,
                    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
                    "SELECT count(*) FROM c");
  for (int time = 0; time < 2; ++time)
    EXPECT_THAT(ErrorOf([&] { endless.Step(); }), HasSubstr("its rows do not end"));
}

TEST_F(StoreTest, ValuesThatNestDeepAreNeitherWrittenNorRead) {
  StudyStore store = OpenFile();
  const std::string deep(100'000, '[');
  EXPECT_THAT(ErrorOf([&] { store.Create({.metadata = deep}); }, Code::kInvalidArgument),
              HasSubstr("flatten it"));
  store.Create({.name = "a"});
  EXPECT_THAT(ErrorOf([&] { store.Commit(Start(0, deep)); }, Code::kInvalidArgument),
              HasSubstr("a configuration nests more than 200"));
  store.Commit(Start(0));
  Database(file_, Database::Access::kWrite)
      .Run(
          "UPDATE trials SET config = replace(hex(zeroblob(50000)), '0', '[');"
          "UPDATE events SET config = replace(hex(zeroblob(50000)), '0', '[')");
  EXPECT_THAT(ErrorOf([&] { (void)store.Trials(1); }), HasSubstr("nests more than 200"));
  EXPECT_THAT(ErrorOf([&] { (void)store.Events(1); }), HasSubstr("nests more than 200"));
}

TEST_F(StoreTest, AFileOfAnOlderFormatStaysAsItIsUntilATrialIsRunAgain) {
  {
    StudyStore store = OpenFile();
    store.Create({.name = "a"});
    store.Commit(Start(0));
  }
  Database(file_, Database::Access::kWrite).Run("PRAGMA user_version=1");
  const std::string bytes = Bytes(file_);
  EXPECT_EQ(OpenFile().Studies().size(), 1U);
  EXPECT_EQ(Bytes(file_), bytes);
  {
    StudyStore store = OpenFile();
    ASSERT_TRUE(store.Resume("a").has_value());
    store.Commit({.kind = EventKind::kRetry, .trial = 0, .error = "died"});
  }
  EXPECT_EQ(Database(file_, Database::Access::kRead).Number("PRAGMA user_version"), 2);
}

TEST_F(StoreTest, F48RowsOfNoStudyAndOfNoTrialAreNotSalvaged) {
  {
    StudyStore store = OpenFile();
    store.Create({.name = "a"});
    store.Commit(std::vector<Event>{Start(0), Start(1)}, std::vector<Attribute>{{-1, "k", "1"}});
    for (const std::int64_t trial : {0, 1})
      for (std::int64_t step = 1; step < 4; ++step) store.Report(trial, step, 0.5);
  }
  Database(file_, Database::Access::kWrite)
      .Run(
          "UPDATE reports SET study = 7 WHERE sequence = (SELECT max(sequence) FROM reports);"
          "UPDATE trials SET number = 9 WHERE number = 0; UPDATE events SET study = 7;");
  const Salvaged found = SalvageStudies(file_);
  EXPECT_EQ(found.studies, 1);
  EXPECT_EQ(found.trials, 2);
  EXPECT_EQ(found.reports, 2);
  const StudyStore store = OpenFile();
  EXPECT_EQ(store.Reports(1).size(), 2U);
  EXPECT_EQ(store.Events(1).size() + store.Events(7).size(), 0U);
  EXPECT_EQ(store.Attributes(1).size(), 1U);
}

// F48: whatever bytes are there, it opens or refuses with a message; what it gives is well-formed.
TEST_F(StoreTest, F48CutAndFlippedFilesAreReadOrRefused) {
  {
    StudyStore store = OpenFile();
    store.Create({.name = "a"});
    for (std::int64_t trial = 0; trial < 300; ++trial) {
      store.Commit(Start(trial, R"({"lr": 0.125, "name": "some configuration"})"));
      for (std::int64_t step = 1; step < 4; ++step) store.Report(trial, step, 0.5);
      store.Commit(Finish(trial, 0.5));
    }
  }
  const std::string whole = Bytes(file_);
  ASSERT_GT(whole.size(), 50'000U);
  std::mt19937_64 random(testing::TestSeed());
  int opened = 0;
  int refused = 0;
  int salvaged = 0;
  std::int64_t trials_read = 0;
  for (int round = 0; round < 120; ++round) {
    std::string bytes = whole;
    if (round % 3 == 0) bytes.resize(random() % whole.size());
    if (round % 3 == 1) bytes[random() % 200] = static_cast<char>(random());
    if (round % 3 == 2)
      for (int i = 0; i < 8; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    const auto file = folder_.path() / ("damaged" + std::to_string(round));
    std::ofstream(file, std::ios::binary) << bytes;
    try {
      StudyStore store = StudyStore::Open(file);
      for (const auto& study : store.Studies()) {
        EXPECT_LE(store.Trials(study.id).size(), 300U);
        EXPECT_LE(store.Reports(study.id).size(), 900U);
        store.Events(study.id);
        store.Attributes(study.id);
      }
      ++opened;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::AnyOf(HasSubstr("file"), HasSubstr("damaged")));
      EXPECT_NE(error.code(), Code::kTimeout) << error.what();
      ++refused;
      try {
        const Salvaged found = SalvageStudies(file);
        EXPECT_EQ(Bytes(found.kept), bytes);
        const StudyStore store = StudyStore::Open(file);
        EXPECT_EQ(store.Trials(1).size(), static_cast<std::size_t>(found.trials));
        EXPECT_EQ(store.Reports(1).size(), static_cast<std::size_t>(found.reports));
        ++salvaged;
        trials_read += found.trials;
      } catch (const Error& nothing) {
        EXPECT_EQ(nothing.code(), Code::kFailedPrecondition) << nothing.what();
        EXPECT_EQ(Bytes(file), bytes);
      }
    }
  }
  EXPECT_GT(opened, 10);
  EXPECT_GT(refused, 30);
  EXPECT_GT(salvaged, 20);
  EXPECT_GT(trials_read / salvaged, 50);
  std::printf("%d opened, %d refused, %d salvaged with %lld of 300 trials\n", opened, refused,
              salvaged, static_cast<long long>(trials_read / std::max(salvaged, 1)));
}

}  // namespace
}  // namespace orca::tune
