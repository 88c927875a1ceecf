// Who waits for whom when a rank skips a collective (F33).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "testing/cases.h"

namespace orca::comm {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::Layout;

class WaitReportTest : public ::testing::TestWithParam<Layout> {
 protected:
  struct Report {
    std::vector<std::string> errors;
    std::string log;
  };

  // Rank 1 of 3 skips the second collective, and stays until the others have given up.
  Report SkipOne(std::size_t count) {
    std::latch over(2);
    ::testing::internal::CaptureStderr();
    Report report;
    report.errors = testing::RunRanksAndCatch(
        3, GetParam(),
        [](CommOptions& options) {
          options.timeout = milliseconds(1500);
          options.warn_after = milliseconds(400);
        },
        [&](Communicator& comm) {
          std::vector<float> data(count);
          comm.AllReduce(AsBytes(data), DType::kFloat32);
          if (comm.rank() == 1) {
            over.wait();
            return;
          }
          struct AtEnd {
            std::latch& latch;
            ~AtEnd() { latch.count_down(); }
          } at_end{over};
          comm.AllReduce(AsBytes(data), DType::kFloat32);
        });
    report.log = ::testing::internal::GetCapturedStderr();
    return report;
  }
};

TEST_P(WaitReportTest, F33ASkippedCollectiveIsReportedAndEndsAtItsDeadlineNamingTheRank) {
  for (const std::size_t count : {std::size_t{10}, std::size_t{50'000}}) {
    const Report report = SkipOne(count);
    const auto call = "allreduce #2 of " + std::to_string(count) + " float32 (sum)";
    for (const int rank : {0, 2}) {
      EXPECT_THAT(
          report.errors[static_cast<std::size_t>(rank)],
          AllOf(HasSubstr("timeout"), HasSubstr(call), HasSubstr("for rank 1 (host "),
                HasSubstr("pid "), HasSubstr("waited 1."), HasSubstr("the deadline has passed")))
          << "rank " << rank;
    }
    EXPECT_THAT(report.log, AllOf(HasSubstr("orca: "), HasSubstr("waits in " + call),
                                  HasSubstr("rank 1 (host ")));
  }
}

TEST_P(WaitReportTest, F33ACallMayHaveALimitOfItsOwn) {
  std::latch over(1);
  const auto errors = testing::RunRanksAndCatch(
      2, GetParam(), [](CommOptions&) {},
      [&](Communicator& comm) {
        if (comm.rank() == 1) {
          over.wait();
          comm.Barrier();  // What rank 0 sent for this one may be quicker than the news of its end.
          comm.Barrier();
          return;
        }
        struct AtEnd {
          std::latch& latch;
          ~AtEnd() { latch.count_down(); }
        } at_end{over};
        Collective call = Collective::Barrier();
        call.timeout = milliseconds(200);
        comm.Run(call);
      });
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("timeout"), HasSubstr("barrier #1"), HasSubstr("rank 1"))));
}

INSTANTIATE_TEST_SUITE_P(Layouts, WaitReportTest, ::testing::ValuesIn(testing::Layouts()),
                         [](const auto& layout) { return layout.param.name; });

}  // namespace
}  // namespace orca::comm
