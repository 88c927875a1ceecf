#include "orca/tune/study_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "orca/core/error.h"
#include "orca/tune/store.h"
#include "testing/folder.h"

namespace orca::tune {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class StudyViewTest : public ::testing::Test {
 protected:
  StudyViewTest()
      : store_(StudyStore::Open(folder_.path() / "study.db",
                                {.clock = [this] { return now_ += 1; }})) {}

  void Trial(std::int64_t number, EventKind end, double value, std::string config) {
    store_.Commit({.kind = EventKind::kStart, .trial = number, .config = std::move(config)});
    store_.Report(number, 1, value + 1);
    store_.Report(number, 2, value);
    if (end != EventKind::kStart)
      store_.Commit({.kind = end,
                     .trial = number,
                     .value = value,
                     .error = end == EventKind::kFail ? "Boom, \"x\"\nline 2" : ""});
  }

  TestFolder folder_;
  double now_ = 1.7e9;
  StudyStore store_;
};

/// What "orca tune ..." prints, and its status.
std::pair<std::string, int> Command(const std::string& arguments) {
  FILE* pipe =
      ::popen((std::string(ORCA_TEST_AGENT) + " tune " + arguments + " 2>&1").c_str(), "r");
  std::string text;
  std::array<char, 4096> block{};
  for (std::size_t read = 0; (read = std::fread(block.data(), 1, block.size(), pipe)) > 0;)
    text.append(block.data(), read);
  return {text, WEXITSTATUS(::pclose(pipe))};
}

TEST_F(StudyViewTest, FailedRunningAndNanTrialsNeverWin) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const char* mode : {"min", "max"}) {
    const auto info = store_.Create({.name = mode, .metric = "loss", .mode = mode});
    const double sign = info.mode == "min" ? 1 : -1;
    Trial(0, EventKind::kFinish, sign * 0.5, "{}");
    Trial(1, EventKind::kFail, sign * -100, "{}");
    Trial(2, EventKind::kFinish, nan, "{}");
    Trial(3, EventKind::kStart, sign * -100, "{}");
    Trial(4, EventKind::kStop, sign * 0.7, "{}");
    Trial(5, EventKind::kFinish, sign * 0.3, "{}");
    Trial(6, EventKind::kFinish, sign * 0.3, "{}");
    const auto view = ViewStudy(store_, info.id);
    EXPECT_THAT(view.ranking, ElementsAre(5U, 6U, 0U, 4U));
    EXPECT_THAT(view.counts, ElementsAre(1, 0, 4, 1, 1));
  }
}

TEST_F(StudyViewTest, TheYoungestStudyIsShownAndOthersByTheirId) {
  try {
    ViewStudy(store_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("there are: none"));
  }
  store_.Create({.name = "a"});
  store_.Create({.name = "b"});
  EXPECT_EQ(ViewStudy(store_).info.name, "b");
  EXPECT_EQ(ViewStudy(store_, 1).info.name, "a");
  try {
    ViewStudy(store_, 7);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no study 7; there are: 1 (a), 2 (b)"));
  }
}

TEST_F(StudyViewTest, CsvHasAColumnForEveryKeyAndQuotesWhatNeedsIt) {
  store_.Create({.name = "a", .metric = "loss"});
  Trial(0, EventKind::kFinish, 0.25, R"({"lr": 0.1, "net": {"width": 8, "act": "re,lu"}})");
  Trial(1, EventKind::kFail, 0.5, R"({"lr": 0.2, "list": [1, 2]})");
  EXPECT_EQ(StudyCsv(ViewStudy(store_)),
            "trial,state,value,step,clones,started,seconds,error,config/list,config/lr,config/net/"
            "act,config/net/width\n"
            "0,finished,0.25,2,0,1700000002.000,3,,,0.1,\"re,lu\",8\n"
            "1,failed,0.5,2,0,1700000006.000,3,\"Boom, \"\"x\"\"\nline 2\",\"[1,2]\",0.2,,\n");
}

TEST_F(StudyViewTest, JsonHasEverything) {
  store_.Create({.name = "a", .metric = "loss", .metadata = R"({"seed": 7})"});
  Trial(0, EventKind::kFinish, 0.25, R"({"lr": 0.5})");
  Trial(1, EventKind::kStart, std::numeric_limits<double>::infinity(), "not json \xff");
  store_.Flush();
  const auto json = nlohmann::json::parse(StudyJson(ViewStudy(store_)));
  EXPECT_EQ(json["study"]["metadata"]["seed"], 7);
  EXPECT_EQ(json["best"], 0);
  EXPECT_EQ(json["counts"]["running"], 1);
  EXPECT_EQ(json["trials"][0]["config"]["lr"], 0.5);
  EXPECT_EQ(json["trials"][0]["reports"][1],
            nlohmann::json::parse(R"({"step": 2, "value": 0.25, "clones": 0})"));
  EXPECT_TRUE(json["trials"][1]["value"].is_null());
  EXPECT_TRUE(json["trials"][1]["reports"][0]["value"].is_null());
}

TEST_F(StudyViewTest, TheTableNamesTheBestAndSaysWhatIsLeftOut) {
  store_.Create({.name = "a", .metric = "loss"});
  for (std::int64_t trial = 0; trial < 60; ++trial)
    Trial(trial, EventKind::kFinish, std::abs(static_cast<double>(trial) - 30.25),
          R"({"x": )" + std::to_string(trial) + "}");
  const std::string table = StudyTable(ViewStudy(store_));
  EXPECT_THAT(table, HasSubstr("60 trials: 0 running, 0 paused, 60 finished, 0 pruned, 0 failed"));
  EXPECT_THAT(table, HasSubstr("best: 0.25 in trial 30\n  x = 30\n"));
  EXPECT_THAT(table, HasSubstr("... and 10 more"));
}

TEST_F(StudyViewTest, ThePageHoldsTheDataAndNoTextEndsIt) {
  store_.Create({.name = "</script><script>alert(1)", .metric = "loss"});
  Trial(0, EventKind::kFinish, 0.25, R"({"name": "</script><img src=x>"})");
  const std::string page = StudyPage(ViewStudy(store_));
  const std::string open = R"(<script type="application/json" id="data">)";
  const auto begin = page.find(open) + open.size();
  const auto data = nlohmann::json::parse(page.substr(begin, page.find("</script>") - begin));
  EXPECT_EQ(data["study"]["name"], "</script><script>alert(1)");
  EXPECT_EQ(data["trials"][0]["config"]["name"], "</script><img src=x>");
  EXPECT_EQ(data["trials"][0]["curve"], nlohmann::json::parse("[[0, 1, 1.25], [0, 2, 0.25]]"));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, Not(HasSubstr("src=\"http")));
}

TEST_F(StudyViewTest, LongTextsMakeNoLongPage) {
  const std::string noise(100'000, '\x01');
  store_.Create({.name = noise, .metric = noise, .metadata = nlohmann::json{{"x", noise}}.dump()});
  for (std::int64_t trial = 0; trial < 60; ++trial) {
    nlohmann::json config;
    for (int key = 0; key < 1000; ++key)
      config["key " + std::to_string(key) + std::string(500, '<')] = std::string(500, '<');
    Trial(trial, EventKind::kFinish, static_cast<double>(trial), config.dump());
  }
  const std::string page = StudyPage(ViewStudy(store_));
  EXPECT_LT(page.size(), 20'000'000U);
  EXPECT_THAT(page, HasSubstr(R"("total":60)"));
}

TEST_F(StudyViewTest, WordsOfAStudyDoNotSteerTheTerminal) {
  const std::string words =
      "a\x1b[2J\x7f\xc2\x9b"
      "2J\xc3\xa4";
  EXPECT_EQ(OneLine(words, 100), "a [2J   2J\xc3\xa4");
  store_.Create({.name = words, .metric = words});
  Trial(0, EventKind::kFinish, 0.25, nlohmann::json{{words, words}}.dump());
  store_.Create({.name = words, .metric = words});
  for (const char* study : {"1", "2"}) {
    const std::string shown =
        Command("show " + folder_.path().string() + " --study " + study).first;
    EXPECT_THAT(shown, HasSubstr("a [2J"));
    EXPECT_THAT(shown, Not(HasSubstr("\x1b")));
    EXPECT_THAT(shown, Not(HasSubstr("\xc2\x9b")));
  }
}

TEST_F(StudyViewTest, AFolderHasOneFileOfStudies) {
  EXPECT_EQ(FindStudyFile(folder_.path()), folder_.path() / "study.db");
  EXPECT_EQ(FindStudyFile(folder_.path() / "study.db"), folder_.path() / "study.db");
  const TestFolder other;
  EXPECT_THROW(FindStudyFile(other.path()), Error);
  std::ofstream(other.path() / "x.db").close();
  EXPECT_EQ(FindStudyFile(other.path()), other.path() / "x.db");
  std::ofstream(other.path() / "y.db").close();
  EXPECT_THROW(FindStudyFile(other.path()), Error);
}

TEST_F(StudyViewTest, TheCommandShowsAStudyThatIsBeingWritten) {
  store_.Create({.name = "old", .metric = "x"});
  store_.Create({.name = "new", .metric = "loss"});
  Trial(0, EventKind::kFinish, 0.25, R"({"lr": 0.5})");
  const std::string path = folder_.path().string();
  const auto view = ViewStudy(store_);
  EXPECT_EQ(Command("show " + path).first,
            StudyTable(view) + "\nstudies in this file (--study ID): 1 (old) 2 (new)\n");
  EXPECT_EQ(Command("show " + path + " --csv"), std::pair(StudyCsv(view), 0));
  EXPECT_EQ(Command("show --json " + path), std::pair(StudyJson(view), 0));
  EXPECT_EQ(Command("show " + path + " --study 1 --csv").first, StudyCsv(ViewStudy(store_, 1)));
  EXPECT_EQ(Command("show " + path + " --html " + path + "/page.html"),
            std::pair(std::string(), 0));
  std::ifstream page(folder_.path() / "page.html");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(page), {}), StudyPage(view));
}

TEST_F(StudyViewTest, TheCommandSaysWhatItDoesNotUnderstand) {
  const std::string path = folder_.path().string();
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "a command is missing"},
           {"dance", "there is no command \"tune dance\""},
           {"show", "no file or folder is given"},
           {"show " + path + " --csv --json", "give one of --csv, --json and --html"},
           {"show " + path + " --html", "--html needs the file"},
           {"show " + path + " --study x", "--study \"x\" is no number"},
           {"show " + path + " --fast", "\"--fast\" is not understood"},
           {"show " + path + "/none", "/none: "},
           {"show " + path, "there is no study; there are: none"}}) {
    const auto [text, status] = Command(arguments);
    EXPECT_EQ(status, 2) << arguments;
    EXPECT_THAT(text, HasSubstr(message));
  }
}

}  // namespace
}  // namespace orca::tune
