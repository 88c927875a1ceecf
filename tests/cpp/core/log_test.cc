#include "orca/core/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "orca/core/error.h"
#include "testing/processes.h"

namespace orca {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// What a process with ORCA_LOG=`level` (nothing: unset) writes to standard error, line by line.
std::string LinesAt(const char* level) {
  testing::Child child([&](const testing::Voice& voice) {
    level == nullptr ? ::unsetenv("ORCA_LOG") : ::setenv("ORCA_LOG", level, 1);
    ::testing::internal::CaptureStderr();
    Log(LogLevel::kDebug, "a debug line");
    Log(LogLevel::kInfo, "an info line");
    Log(LogLevel::kWarning, "a warning line");
    Log(LogLevel::kError, "an error line");
    voice.Tell(::testing::internal::GetCapturedStderr());  // line ends become spaces
  });
  const auto lines = child.Listen();
  child.Wait();
  return lines.value_or("");
}

TEST(LogTest, ShowsInfoAndAboveByDefault) {
  EXPECT_EQ(LinesAt(nullptr), "orca: an info line orca: a warning line orca: an error line ");
}

TEST(LogTest, ShowsWhatItsLevelAsksFor) {
  EXPECT_THAT(LinesAt("debug"), StartsWith("orca: a debug line orca: an info line"));
  EXPECT_EQ(LinesAt("warning"), "orca: a warning line orca: an error line ");
  EXPECT_EQ(LinesAt("error"), "orca: an error line ");
  EXPECT_EQ(LinesAt("off"), "");
}

TEST(LogTest, AnUnknownLevelIsNamedAndTheDefaultIsUsed) {
  EXPECT_THAT(LinesAt("loud"),
              AllOf(HasSubstr("ORCA_LOG=loud is not a level"), HasSubstr("debug, info, warning"),
                    HasSubstr("an info line"), Not(HasSubstr("a debug line"))));
}

TEST(LogTest, LinesOfManyThreadsDoNotMix) {
  ::testing::internal::CaptureStderr();
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 100; ++i) Log(LogLevel::kError, "0123456789");
      });
    }
  }
  std::string wanted;
  for (int i = 0; i < 400; ++i) wanted += "orca: 0123456789\n";
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), wanted);
}

TEST(LogTest, AFooterStaysBelowTheLines) {
  ::testing::internal::CaptureStderr();
  {
    LogFooter footer;
    Log(LogLevel::kError, "before");
    footer.Show("one\ntwo\n");
    Log(LogLevel::kDebug, "not shown");
    Log(LogLevel::kError, "above");
    footer.Show("three\n");
    footer.Show("four\n");
    footer.Clear();
    footer.Clear();
    footer.Show("five\n");
  }
  Log(LogLevel::kError, "after");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "orca: before\n"
            "one\ntwo\n\r\x1b[2A\x1b[Jorca: above\n"
            "three\n\r\x1b[1A\x1b[Jfour\n\r\x1b[1A\x1b[J"
            "five\n\r\x1b[1A\x1b[Jorca: after\n");
}

TEST(ErrorTest, EveryCodeHasAName) {
  for (int code = 1; code <= 10; ++code) EXPECT_STRNE(CodeName(static_cast<Code>(code)), "unknown");
  EXPECT_STREQ(CodeName(static_cast<Code>(0)), "unknown");
  EXPECT_STREQ(CodeName(Code::kPeerLost), "peer lost");
}

}  // namespace
}  // namespace orca
