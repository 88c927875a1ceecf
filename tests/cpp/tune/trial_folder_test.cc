#include "orca/tune/trial_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "net/expect_error.h"
#include "orca/io/event_file.h"
#include "testing/folder.h"

namespace orca::tune {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class TrialFolderTest : public ::testing::Test {
 protected:
  std::string Text(const std::string& name) const {
    std::ifstream file(own_ / name, std::ios::binary);
    return (std::ostringstream() << file.rdbuf()).str();
  }

  TestFolder folder_;
  const std::filesystem::path own_ = folder_.path() / "train_func_ab12c_00007";
};

TEST_F(TrialFolderTest, HasALineForEachReport) {
  TrialFolder files(own_, "mse", 1e9);
  files.Begin(R"({"lr": 0.5})", {{"lr", 0.5}});
  files.Add({.step = 1, .value = 0.25, .best = 0.25, .seconds = 1.5});
  files.Add({.step = 2, .value = 1.0 / 3, .best = 0.25, .seconds = 2});
  files.End(false);
  files.End(false);  // Once is enough.
  for (const auto& file : std::filesystem::directory_iterator(own_))
    EXPECT_EQ(file.status().permissions(), std::filesystem::perms(0600)) << file.path();
  EXPECT_EQ(Text("params.json"), R"({"lr": 0.5})");
  std::istringstream lines(Text("result.json"));
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(nlohmann::json::parse(line), nlohmann::json({{"training_iteration", 1},
                                                         {"mse", 0.25},
                                                         {"best_mse", 0.25},
                                                         {"checkpoint", "best.ckpt"},
                                                         {"time_total_s", 1.5},
                                                         {"trial_id", "ab12c_00007"}}));
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(nlohmann::json::parse(line)["mse"].get<double>(), 1.0 / 3);  // Every digit.
  EXPECT_FALSE(std::getline(lines, line));
  EXPECT_EQ(Text("progress.csv"),
            "training_iteration,mse,best_mse,checkpoint,time_total_s,trial_id\r\n"
            "1,0.25,0.25,best.ckpt,1.5,ab12c_00007\r\n"
            "2,0.3333333333333333,0.25,best.ckpt,2.0,ab12c_00007\r\n");
  const auto scalars = io::ReadScalars(own_, "ray/tune/mse");
  ASSERT_THAT(scalars, SizeIs(2));
  EXPECT_EQ(scalars[0].step, 1);
  EXPECT_EQ(scalars[0].value, 0.25);
  EXPECT_THAT(io::ReadScalars(own_, "ray/tune/checkpoint"), SizeIs(0));
}

TEST_F(TrialFolderTest, WhoGoesOnAddsToTheTable) {
  for (int life = 1; life <= 2; ++life) {
    TrialFolder files(own_, "a \"good\", long name", 0);
    files.Begin("{}", {});
    files.Add({.step = life, .value = 1, .best = 1, .seconds = 0});
    files.End(life == 2);
  }
  const std::string table = Text("progress.csv");
  EXPECT_THAT(table, HasSubstr("training_iteration,\"a \"\"good\"\", long name\",\"best_a "));
  EXPECT_EQ(table.find("training"), table.rfind("training"));
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(own_))
    names.push_back(entry.path().filename().string().substr(0, 6));
  std::sort(names.begin(), names.end());
  EXPECT_THAT(names, ElementsAre("events", "events", "params", "progre", "result"));
}

TEST_F(TrialFolderTest, AReportWithoutABeginningIsWritten) {
  std::filesystem::create_directory(own_);
  TrialFolder files(own_, "mse", 0);
  files.Add({.step = 1, .value = 1, .best = 1, .seconds = 0});
  files.End(true);
  EXPECT_THAT(Text("result.json"), HasSubstr("\"mse\":1.0"));
}

TEST_F(TrialFolderTest, WhatCannotBeWrittenIsSaid) {
  TrialFolder files(folder_.path() / "missing" / "own", "mse", 0);
  EXPECT_THAT(ErrorOf([&] { files.Begin("{}", {}); }),
              IsError(Code::kUnavailable, HasSubstr("cannot make the folder")));
  EXPECT_THAT(ErrorOf([&] { files.Add({}); }),
              IsError(Code::kUnavailable, HasSubstr("result.json")));
}

}  // namespace
}  // namespace orca::tune
