// Calls that can never work are refused with a reason, and the group goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "net/expect_error.h"
#include "testing/cases.h"

namespace orca::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct BadCall {
  const char* name;
  std::function<Collective(Bytes)> make;
  std::vector<const char*> says;
};

Collective Raw(Op op, std::vector<ConstBytes> inputs, std::vector<Bytes> outputs, int root = 0) {
  Collective call;
  call.op = op;
  call.inputs = std::move(inputs);
  call.outputs = std::move(outputs);
  call.root = root;
  return call;
}

// All for a world of 2 and a buffer of 64 bytes.
std::vector<BadCall> BadCalls() {
  return {
      {"HalfAnElement",
       [](Bytes d) { return Collective::AllReduce(d.first(6), DType::kFloat32); },
       {"allreduce", "6 bytes", "float32", "4 bytes each"}},
      {"BitwiseFloats",
       [](Bytes d) { return Collective::AllReduce(d, DType::kFloat32, ReduceOp::kBitXor); },
       {"bitxor", "not defined for float32"}},
      {"ScaledIntegers",
       [](Bytes d) { return Collective::AllReduce(d, DType::kInt32, ReduceOp::kPreMulSum); },
       {"premulsum", "int32"}},
      {"AverageOfBools",
       [](Bytes d) { return Collective::AllReduce(d, DType::kBool, ReduceOp::kAverage); },
       {"average", "bool"}},
      {"UnknownType",
       [](Bytes d) { return Collective::AllReduce(d, static_cast<DType>(77)); },
       {"77", "unknown"}},
      {"UnknownOperator",
       [](Bytes d) { return Collective::AllReduce(d, DType::kInt8, static_cast<ReduceOp>(99)); },
       {"99", "unknown"}},
      {"UnknownOperation",
       [](Bytes d) { return Raw(static_cast<Op>(50), {d}, {d}); },
       {"no such operation"}},
      {"OutputShorterThanInput",
       [](Bytes d) { return Collective::AllReduce(ConstBytes(d), d.first(32), DType::kInt8); },
       {"got 32 output bytes", "wants 64"}},
      {"NoInput",
       [](Bytes d) { return Raw(Op::kAllReduce, {}, {d}); },
       {"got 0 inputs", "wants 1"}},
      {"NoOutput", [](Bytes d) { return Raw(Op::kReduce, {d}, {}); }, {"reduce", "got 0 outputs"}},
      {"RootTooHigh",
       [](Bytes d) { return Collective::Broadcast(d, DType::kInt8, 2); },
       {"root 2", "group of 2"}},
      {"RootNegative",
       [](Bytes d) { return Collective::Reduce(d, DType::kInt8, -1); },
       {"root -1", "group of 2"}},
      {"GatheredIntoTooLittle",
       [](Bytes d) { return Collective::AllGather(d.first(32), d.first(63), DType::kInt8); },
       {"allgather", "got 63 output bytes", "wants 64"}},
      {"GatheredIntoTooManyParts",
       [](Bytes d) {
         return Collective::AllGather(d.first(4), std::vector<Bytes>(3, d.first(4)), DType::kInt8);
       },
       {"got 3 outputs", "wants 2"}},
      {"OwnPartOfAnotherSize",
       [](Bytes d) {
         return Collective::AllGather(d.first(4), std::vector<Bytes>(2, d.first(5)), DType::kInt8);
       },
       {"got 5 bytes in this rank's output", "wants 4"}},
      {"ScatteredFromTooLittle",
       [](Bytes d) { return Collective::ReduceScatter(d.first(30), d.first(16), DType::kInt8); },
       {"reduce_scatter", "got 30 input bytes", "wants 32"}},
      {"ScatteredFromTooManyParts",
       [](Bytes d) {
         return Collective::ReduceScatter(std::vector<ConstBytes>(3, d.first(4)), d.first(4),
                                          DType::kInt8);
       },
       {"got 3 inputs", "wants 2"}},
      {"AllToAllThatCannotBeCut",
       [](Bytes d) { return Collective::AllToAll(d.first(33), d.first(33), DType::kInt8); },
       {"33 bytes", "2 equal parts"}},
      {"AllToAllWithThreeParts",
       [](Bytes d) {
         return Collective::AllToAll(std::vector<ConstBytes>(3, d.first(4)),
                                     std::vector<Bytes>(2, d.first(4)), DType::kInt8);
       },
       {"got 3 inputs", "wants 2"}},
      {"NegativeTimeout",
       [](Bytes) {
         Collective call = Collective::Barrier();
         call.timeout = std::chrono::milliseconds(-5);
         return call;
       },
       {"-5 ms", "negative"}},
  };
}

class BadInputTest : public ::testing::TestWithParam<BadCall> {};

TEST_P(BadInputTest, IsRefusedWithAReasonAndTheGroupGoesOn) {
  for (const auto& layout : {testing::SharedMemoryLayout(), testing::TcpLayout()}) {
    testing::RunRanks(2, layout, [&](Communicator& comm) {
      std::vector<std::byte> data(64);
      const Collective call = GetParam().make(data);
      for (const bool asynchronous : {false, true}) {
        const Error error =
            ErrorOf([&] { asynchronous ? comm.Start(call).Wait() : comm.Run(call); });
        EXPECT_EQ(error.code(), Code::kInvalidArgument);
        for (const char* text : GetParam().says) EXPECT_THAT(error.what(), HasSubstr(text));
      }
      EXPECT_EQ(comm.sequence(), 0u);
      int value = 1;
      comm.AllReduce(testing::BytesOf(value), DType::kInt32);
      EXPECT_EQ(value, 2);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, BadInputTest, ::testing::ValuesIn(BadCalls()),
                         [](const auto& call) { return std::string(call.param.name); });

TEST(BadRootedInputTest, ListsOnlyTheRootMayGiveAreRefusedElsewhere) {
  testing::RunRanks(2, testing::SharedMemoryLayout(), [](Communicator& comm) {
    std::vector<std::byte> data(64);
    const Bytes d(data);
    const std::vector<Bytes> lists(comm.rank() == 0 ? 1 : 2,
                                   d.first(8));  // the root must give 2, the other none
    const std::vector<ConstBytes> inputs(lists.begin(), lists.end());
    EXPECT_THAT(
        ErrorOf([&] { comm.Run(Collective::Gather(d.first(8), lists, DType::kInt8, 0)); }),
        IsError(Code::kInvalidArgument, HasSubstr(comm.rank() == 0 ? "wants 2" : "wants 0")));
    EXPECT_THAT(
        ErrorOf([&] { comm.Run(Collective::Scatter(inputs, d.first(8), DType::kInt8, 0)); }),
        IsError(Code::kInvalidArgument, HasSubstr(comm.rank() == 0 ? "wants 2" : "wants 0")));
    comm.Barrier();
  });
}

Error ConnectError(const Membership& membership, const CommOptions& options = {}) {
  return ErrorOf([&] { Communicator::Connect(membership, options); });
}

TEST(BadMembershipTest, IsRefusedBeforeAnythingIsOpened) {
  EXPECT_THAT(ConnectError({.world = 0}),
              IsError(Code::kInvalidArgument, HasSubstr("group of 0 ranks")));
  EXPECT_THAT(ConnectError({.world = 5000}),
              IsError(Code::kInvalidArgument, HasSubstr("1 to 1024")));
  EXPECT_THAT(ConnectError({.rank = 2, .world = 2, .store = NewMemoryStore()}),
              IsError(Code::kInvalidArgument, HasSubstr("ranks are 0 to 1")));
  EXPECT_THAT(ConnectError({.rank = -1, .world = 2, .store = NewMemoryStore()}),
              IsError(Code::kInvalidArgument, HasSubstr("rank -1")));
  EXPECT_THAT(ConnectError({.rank = 0, .world = 2}),
              IsError(Code::kInvalidArgument, HasSubstr("needs a store")));
}

TEST(BadOptionsTest, AreRefusedWhenTheGroupForms) {
  const auto refused = [](const std::function<void(CommOptions&)>& change) {
    CommOptions options;
    change(options);
    return ConnectError({}, options);
  };
  using std::chrono::milliseconds;
  EXPECT_THAT(refused([](auto& o) { o.timeout = milliseconds(-1); }),
              IsError(Code::kInvalidArgument, AllOf(HasSubstr("timeout"), HasSubstr("-1 ms"))));
  EXPECT_THAT(refused([](auto& o) { o.connect_timeout = milliseconds(0); }),
              IsError(Code::kInvalidArgument, HasSubstr("connect_timeout")));
  EXPECT_THAT(refused([](auto& o) { o.peer_timeout = milliseconds(-7); }),
              IsError(Code::kInvalidArgument, HasSubstr("peer_timeout")));
  EXPECT_THAT(refused([](auto& o) { o.warn_after = milliseconds(0); }),
              IsError(Code::kInvalidArgument, HasSubstr("warn_after")));
  EXPECT_THAT(refused([](auto& o) { o.transport = "rdma"; }),
              IsError(Code::kInvalidArgument, AllOf(HasSubstr("rdma"), HasSubstr("auto or tcp"))));
  EXPECT_THAT(refused([](auto& o) { o.streams = -2; }),
              IsError(Code::kInvalidArgument, AllOf(HasSubstr("streams"), HasSubstr("-2"))));
  EXPECT_THAT(refused([](auto& o) { o.streams = 1000; }),
              IsError(Code::kInvalidArgument, HasSubstr("1000")));
}

TEST(MissingRankTest, F15IsNamedWhenTheGroupDoesNotForm) {
  const auto store = NewMemoryStore();
  const auto errors = testing::RunThreads(2, [&](int rank) {
    Join(testing::Seat{
        .rank = rank,
        .world = 4,
        .layout = testing::SharedMemoryLayout(),
        .store = store,
        .adjust = [](CommOptions& options) { options.connect_timeout = std::chrono::seconds(1); }});
  });
  EXPECT_THAT(errors, ::testing::Each(AllOf(HasSubstr("timeout"),
                                            HasSubstr("group of 4 ranks did not form"),
                                            HasSubstr("rank 2, 3 did not come"))));
}

}  // namespace
}  // namespace orca::comm
