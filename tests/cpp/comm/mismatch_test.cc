// Ranks that make different calls (F31, F32).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "testing/cases.h"
#include "testing/processes.h"
#include "testing/seed.h"

namespace orca::comm {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::Clock;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::Layout;

constexpr std::chrono::seconds kSoon(
    20);  // far below the limits of the test's groups: nobody waited for those

class MismatchTest : public ::testing::TestWithParam<Layout> {
 protected:
  // One rank of `world` makes the call that `odd` makes of its buffer, the others the one that
  // `usual` makes.
  std::vector<std::string> RunOdd(int world, int odd_rank,
                                  const std::function<Collective(Bytes)>& usual,
                                  const std::function<Collective(Bytes)>& odd) {
    const auto begin = Clock::now();
    auto errors = testing::RunRanksAndCatch(
        world, GetParam(), [](CommOptions&) {},
        [&](Communicator& comm) {
          std::vector<std::byte> data(1 << 20);
          comm.Barrier();
          comm.Run(comm.rank() == odd_rank ? odd(data) : usual(data));
          comm.Barrier();  // a rank that could finish meets the failure here
        });
    EXPECT_LT(Clock::now() - begin, kSoon);
    return errors;
  }

  void ExpectBothShown(const std::vector<std::string>& errors, const std::string& one,
                       const std::string& other) {
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("mismatch: "), HasSubstr(one), HasSubstr(other))));
  }
};

Collective Sum(Bytes data, std::size_t count, DType dtype = DType::kFloat32,
               ReduceOp op = ReduceOp::kSum) {
  return Collective::AllReduce(data.first(count * SizeOf(dtype)), dtype, op);
}

TEST_P(MismatchTest, F32OfOperationsShowsBothCalls) {
  for (const std::size_t count : {std::size_t{4}, std::size_t{5000}}) {
    const auto errors = RunOdd(
        3, 1, [&](Bytes data) { return Sum(data, count); },
        [&](Bytes data) {
          return Collective::Broadcast(data.first(count * 4), DType::kFloat32, 0);
        });
    ExpectBothShown(errors, fmt::format("allreduce #2 of {} float32 (sum)", count),
                    fmt::format("broadcast #2 of {} float32 (root 0)", count));
  }
}

TEST_P(MismatchTest, F31OfTypesShowsBothCalls) {
  const auto errors = RunOdd(
      3, 2, [](Bytes data) { return Sum(data, 2000); },
      [](Bytes data) { return Sum(data, 2000, DType::kInt32); });
  ExpectBothShown(errors, "allreduce #2 of 2000 float32 (sum)", "allreduce #2 of 2000 int32 (sum)");
}

TEST_P(MismatchTest, F31OfCountsShowsBothCalls) {
  const auto errors = RunOdd(
      4, 0, [](Bytes data) { return Sum(data, 2000); }, [](Bytes data) { return Sum(data, 7); });
  ExpectBothShown(errors, "allreduce #2 of 2000 float32 (sum)", "allreduce #2 of 7 float32 (sum)");
}

TEST_P(MismatchTest, F32OfOperatorsShowsBothCalls) {
  const auto errors = RunOdd(
      2, 1, [](Bytes data) { return Sum(data, 10); },
      [](Bytes data) { return Sum(data, 10, DType::kFloat32, ReduceOp::kMax); });
  ExpectBothShown(errors, "(sum)", "(max)");
}

TEST_P(MismatchTest, F32OfRootsShowsBothCalls) {
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{100'000}}) {
    const auto errors = RunOdd(
        4, 3, [&](Bytes data) { return Collective::Broadcast(data.first(bytes), DType::kInt8, 0); },
        [&](Bytes data) { return Collective::Broadcast(data.first(bytes), DType::kInt8, 2); });
    ExpectBothShown(errors, "(root 0)", "(root 2)");
  }
}

TEST_P(MismatchTest, F32OfPartsThatTwoRanksExchangeIsFound) {
  const auto errors = testing::RunRanksAndCatch(
      2, GetParam(), [](CommOptions&) {},
      [](Communicator& comm) {
        std::vector<std::byte> data(1000);
        const Bytes bytes(data);
        // Rank 0 sends 100 bytes to rank 1, which expects 200.
        const std::size_t received = comm.rank() == 0 ? 100 : 200;
        comm.Run(Collective::AllToAll(
            {bytes.first(100), bytes.first(100)},
            {comm.rank() == 0 ? bytes.first(100) : bytes.first(received), bytes.first(100)},
            DType::kInt8));
        comm.Barrier();
      });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("mismatch: "), HasSubstr("100"), HasSubstr("200"))));
}

TEST_P(MismatchTest, F31OfTheOrderOfUnequalPartsIsFound) {
  for (const std::size_t unit : {std::size_t{8}, std::size_t{80'000}}) {
    const auto begin = Clock::now();
    const auto errors = testing::RunRanksAndCatch(
        2, GetParam(), [](CommOptions&) {},
        [&](Communicator& comm) {
          std::vector<std::byte> data(4 * unit);
          const Bytes bytes(data);
          // Together they are equally long, but the ranks cut them differently.
          std::vector<ConstBytes> parts{bytes.first(unit), bytes.subspan(unit, 3 * unit)};
          Bytes output = bytes.first(unit);
          if (comm.rank() == 1) parts = {bytes.first(3 * unit), bytes.subspan(3 * unit, unit)};
          comm.Run(Collective::ReduceScatter(parts, output, DType::kInt8));
          comm.Barrier();
        });
    EXPECT_THAT(errors, Each(HasSubstr("mismatch: ")));
    EXPECT_LT(Clock::now() - begin, kSoon);
  }
}

// A call of a random program.
struct Step {
  Op op = Op::kBarrier;
  DType dtype = DType::kInt32;
  std::size_t count = 0;
  int root = 0;
  bool operator==(const Step&) const = default;
};

Step RandomStep(std::mt19937_64& random, int world) {
  constexpr std::array kOps{Op::kBarrier, Op::kAllReduce, Op::kBroadcast, Op::kAllGather,
                            Op::kReduce};
  constexpr std::array<std::size_t, 4> kCounts{0, 3, 1024, 9000};
  Step step{.op = kOps[random() % kOps.size()]};
  if (step.op == Op::kBarrier) return step;
  step.dtype = random() % 2 == 0 ? DType::kInt32 : DType::kFloat32;
  step.count = kCounts[random() % kCounts.size()];
  if (step.op == Op::kBroadcast || step.op == Op::kReduce)
    step.root = static_cast<int>(random()) & (world - 1);
  return step;
}

void RunStep(Communicator& comm, const Step& step) {
  std::vector<std::byte> data(step.count * 4);
  std::vector<std::byte> gathered(data.size() * static_cast<std::size_t>(comm.world()));
  switch (step.op) {
    case Op::kAllReduce:
      return comm.AllReduce(data, step.dtype);
    case Op::kBroadcast:
      return comm.Broadcast(data, step.dtype, step.root);
    case Op::kAllGather:
      return comm.AllGather(data, gathered, step.dtype);
    case Op::kReduce:
      return comm.Run(Collective::Reduce(data, step.dtype, step.root));
    default:
      return comm.Barrier();
  }
}

TEST_P(MismatchTest, F32RandomProgramsThatDifferEndEverywhereWithBothCalls) {
  constexpr int kWorld = 4;
  const int rounds = testing::kSanitized ? 5 : 40;
  std::mt19937_64 random(testing::TestSeed());
  for (int round = 0; round < rounds; ++round) {
    std::vector<Step> program;
    for (int i = 0; i < 10; ++i) program.push_back(RandomStep(random, kWorld));
    const int odd_rank = static_cast<int>(random() % kWorld);
    const std::size_t at = random() % program.size();
    Step other = RandomStep(random, kWorld);
    while (other == program[at]) other = RandomStep(random, kWorld);
    const auto begin = Clock::now();
    const auto errors = testing::RunRanksAndCatch(
        kWorld, GetParam(), [](CommOptions&) {},
        [&](Communicator& comm) {
          for (std::size_t i = 0; i < program.size(); ++i) {
            RunStep(comm, comm.rank() == odd_rank && i == at ? other : program[i]);
          }
          comm.Barrier();
        });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("mismatch: "), HasSubstr(Name(other.op)),
                                   HasSubstr(Name(program[at].op)))))
        << "round " << round << ": rank " << odd_rank << " differs in call " << at + 1;
    EXPECT_LT(Clock::now() - begin, kSoon);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, MismatchTest, ::testing::ValuesIn(testing::Layouts()),
                         [](const auto& layout) { return layout.param.name; });

TEST(MismatchedOptionsTest, F31AreNamedWhenTheGroupForms) {
  const auto store = NewMemoryStore();
  const auto errors = testing::RunThreads(2, [&](int rank) {
    Join(testing::Seat{.rank = rank,
                       .world = 2,
                       .layout = testing::TcpLayout(),
                       .store = store,
                       .adjust = [rank](CommOptions& options) { options.wire_bf16 = rank == 1; }});
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("failed precondition"), HasSubstr("wire_bf16=false"),
                                 HasSubstr("wire_bf16=true"))));
}

TEST(MismatchedOptionsTest, F31AWorldThatDiffersIsNamed) {
  const auto store = NewMemoryStore();
  const auto errors = testing::RunThreads(2, [&](int rank) {
    Join(testing::Seat{
        .rank = rank,
        .world = 2 + rank,
        .layout = testing::TcpLayout(),
        .store = store,
        .adjust = [](CommOptions& options) { options.connect_timeout = std::chrono::seconds(1); }});
  });
  EXPECT_THAT(errors[1],
              AllOf(HasSubstr("mismatch"), HasSubstr("a group of 2 ranks"), HasSubstr("one of 3")));
}

}  // namespace
}  // namespace orca::comm
