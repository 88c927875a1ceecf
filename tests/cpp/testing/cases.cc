#include "testing/cases.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>

#include "testing/seed.h"

namespace orca::testing {

using comm::Bytes;
using comm::Collective;
using comm::ConstBytes;
using comm::Op;

/// A buffer in the arena or on the heap, with a guard behind it. Long odd counts begin off the
/// cache line.
class CaseRunner::Memory {
 public:
  Memory(comm::Communicator& comm, const Case& c, std::size_t elements)
      : arena_(*comm.arena()),
        bytes_(elements * comm::SizeOf(c.dtype)),
        shift_(c.count % 2 * comm::SizeOf(c.dtype)) {
    const std::size_t total = shift_ + bytes_ + kGuard;
    if (c.registered) {
      base_ = static_cast<std::byte*>(arena_.Allocate(total));
      registered_ = true;
    } else {
      heap_.resize(total);
      base_ = heap_.data();
    }
    std::fill_n(base_ + shift_, bytes_, std::byte{0x77});
    std::fill_n(base_ + shift_ + bytes_, kGuard, std::byte{0x5a});
  }
  ~Memory() {
    const std::byte* guard = base_ + shift_ + bytes_;
    EXPECT_EQ(std::count(guard, guard + kGuard, std::byte{0x5a}), kGuard)
        << "written beyond a buffer";
    if (registered_) arena_.Free(base_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  Bytes bytes() { return {base_ + shift_, bytes_}; }
  Bytes elements(std::size_t first, std::size_t count, comm::DType dtype) {
    return bytes().subspan(first * comm::SizeOf(dtype), count * comm::SizeOf(dtype));
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 64;
  comm::Arena& arena_;
  Buffer heap_;
  std::size_t bytes_;
  std::size_t shift_;
  std::byte* base_ = nullptr;
  bool registered_ = false;
};

const std::vector<Layout>& Layouts() {
  static const std::vector<Layout> layouts{SharedMemoryLayout(), TcpLayout(), HostsLayout(2),
                                           HostsLayout(3)};
  return layouts;
}

std::string Describe(const Case& c) {
  return fmt::format("{} of {} {}, {}, root {}, world {}, {}{}{}{}", Name(c.op), c.count,
                     Name(c.dtype), Name(c.reduce), c.root, c.world, Layouts()[c.layout].name,
                     c.in_place ? ", in place" : "", c.registered ? ", registered" : "",
                     c.unequal ? ", unequal parts" : "");
}

std::vector<Case> CoverPairs(std::vector<Case> cases, std::uint64_t seed) {
  std::shuffle(cases.begin(), cases.end(), std::mt19937_64(seed));
  std::set<std::array<std::size_t, 4>> covered;
  std::vector<Case> kept;
  for (const Case& c : cases) {
    const std::array<std::size_t, 10> values{static_cast<std::size_t>(c.world),
                                             c.layout,
                                             static_cast<std::size_t>(c.op),
                                             static_cast<std::size_t>(c.dtype),
                                             static_cast<std::size_t>(c.reduce),
                                             c.count,
                                             static_cast<std::size_t>(c.root),
                                             c.in_place,
                                             c.registered,
                                             c.unequal};
    bool is_new = false;
    for (std::size_t a = 0; a < values.size(); ++a) {
      for (std::size_t b = a + 1; b < values.size(); ++b) {
        is_new |= covered.insert({a, values[a], b, values[b]}).second;
      }
    }
    if (is_new) kept.push_back(c);
  }
  return kept;
}

CaseRunner::CaseRunner(comm::Communicator& comm, const Layout& layout)
    : comm_(comm), hosts_(HostsOf(layout, comm.world())) {}

void CaseRunner::Check(bool good, const Case& c, const char* what) {
  if (!good) ADD_FAILURE() << what << " is wrong on rank " << comm_.rank() << ": " << Describe(c);
}

std::size_t CaseRunner::Part(const Case& c, int r) const {
  if (!c.unequal) return c.count;
  const std::array<std::size_t, 4> parts{c.count, c.count / 3, 0, c.count / 2 + 1};
  return parts[static_cast<std::size_t>(r) % parts.size()];
}

const Buffer& CaseRunner::Input(const Case& c, int rank) {
  auto& tile = tiles_[{c.dtype, c.reduce, rank}];
  if (tile.empty()) tile = InputTile(c.dtype, c.reduce, rank);
  return tile;
}

const Buffer& CaseRunner::Expected(const Case& c) {
  auto& tile = tiles_[{c.dtype, c.reduce, -1}];
  if (tile.empty()) tile = ReducedTile(c.dtype, c.reduce, hosts_);
  return tile;
}

void CaseRunner::RunAllReduce(const Case& c) {
  Memory output(comm_, c, c.count);
  Memory input(comm_, c, c.in_place ? 0 : c.count);
  const Bytes from = c.in_place ? output.bytes() : input.bytes();
  FillFrom(Input(c, comm_.rank()), 0, c.dtype, from);
  comm_.Run(Collective::AllReduce(from, output.bytes(), c.dtype, c.reduce, FactorOf(comm_.rank())));
  Check(Holds(Expected(c), 0, c.dtype, output.bytes()), c, "the output");
  if (!c.in_place) Check(Holds(Input(c, comm_.rank()), 0, c.dtype, from), c, "the input");
}

void CaseRunner::RunReduce(const Case& c) {
  Memory data(comm_, c, c.count);
  FillFrom(Input(c, comm_.rank()), 0, c.dtype, data.bytes());
  comm_.Run(Collective::Reduce(data.bytes(), c.dtype, c.root, c.reduce, FactorOf(comm_.rank())));
  const Buffer& wanted = comm_.rank() == c.root ? Expected(c) : Input(c, comm_.rank());
  Check(Holds(wanted, 0, c.dtype, data.bytes()), c, "the buffer");
}

void CaseRunner::RunReduceScatter(const Case& c) {
  std::size_t total = 0;
  std::size_t before = 0;
  for (int r = 0; r < comm_.world(); ++r) {
    if (r == comm_.rank()) before = total;
    total += Part(c, r);
  }
  const std::size_t mine = Part(c, comm_.rank());
  Memory input(comm_, c, total);
  FillFrom(Input(c, comm_.rank()), 0, c.dtype, input.bytes());
  Memory separate(comm_, c, c.in_place ? 0 : mine);
  const Bytes output = c.in_place ? input.elements(before, mine, c.dtype) : separate.bytes();
  if (c.unequal) {
    std::vector<ConstBytes> parts;
    std::size_t begin = 0;
    for (int r = 0; r < comm_.world(); begin += Part(c, r++))
      parts.push_back(input.elements(begin, Part(c, r), c.dtype));
    comm_.Run(Collective::ReduceScatter(std::move(parts), output, c.dtype, c.reduce,
                                        FactorOf(comm_.rank())));
  } else {
    comm_.Run(Collective::ReduceScatter(input.bytes(), output, c.dtype, c.reduce,
                                        FactorOf(comm_.rank())));
  }
  Check(Holds(Expected(c), before, c.dtype, output), c, "the output");
  if (!c.in_place) Check(Holds(Input(c, comm_.rank()), 0, c.dtype, input.bytes()), c, "the input");
}

void CaseRunner::RunBroadcast(const Case& c) {
  Memory data(comm_, c, c.count);
  FillFrom(Input(c, comm_.rank()), 0, c.dtype, data.bytes());
  comm_.Broadcast(data.bytes(), c.dtype, c.root);
  Check(Holds(Input(c, c.root), 0, c.dtype, data.bytes()), c, "the buffer");
}

void CaseRunner::RunAllGather(const Case& c) {
  std::vector<std::size_t> begins;
  std::size_t total = 0;
  for (int r = 0; r < comm_.world(); total += Part(c, r++)) begins.push_back(total);
  const auto me = static_cast<std::size_t>(comm_.rank());
  const std::size_t mine = Part(c, comm_.rank());
  Memory output(comm_, c, total);
  Memory separate(comm_, c, c.in_place ? 0 : mine);
  const Bytes input = c.in_place ? output.elements(begins[me], mine, c.dtype) : separate.bytes();
  FillFrom(Input(c, comm_.rank()), 0, c.dtype, input);
  if (c.unequal) {
    std::vector<Bytes> parts;
    for (int r = 0; r < comm_.world(); ++r) {
      parts.push_back(output.elements(begins[static_cast<std::size_t>(r)], Part(c, r), c.dtype));
    }
    comm_.Run(Collective::AllGather(input, std::move(parts), c.dtype));
  } else {
    comm_.AllGather(input, output.bytes(), c.dtype);
  }
  for (int r = 0; r < comm_.world(); ++r) {
    const Bytes part = output.elements(begins[static_cast<std::size_t>(r)], Part(c, r), c.dtype);
    Check(Holds(Input(c, r), 0, c.dtype, part), c, "a part of the output");
  }
}

void CaseRunner::RunAllToAll(const Case& c) {
  const int me = comm_.rank();
  const auto pair = [&](int from, int to) { return Part(c, from + 2 * to); };
  std::size_t sent = 0;
  std::size_t received = 0;
  for (int r = 0; r < comm_.world(); ++r) {
    sent += pair(me, r);
    received += pair(r, me);
  }
  Memory input(comm_, c, sent);
  Memory output(comm_, c, received);
  std::vector<ConstBytes> sends;
  std::vector<Bytes> recvs;
  std::size_t from = 0;
  std::size_t to = 0;
  for (int r = 0; r < comm_.world(); ++r) {
    const Bytes part = input.elements(from, pair(me, r), c.dtype);
    FillFrom(Input(c, me), static_cast<std::size_t>(r), c.dtype, part);
    sends.push_back(part);
    recvs.push_back(output.elements(to, pair(r, me), c.dtype));
    from += pair(me, r);
    to += pair(r, me);
  }
  if (c.unequal) {
    comm_.Run(Collective::AllToAll(std::move(sends), recvs, c.dtype));
  } else {
    comm_.Run(Collective::AllToAll(input.bytes(), output.bytes(), c.dtype));
  }
  for (int r = 0; r < comm_.world(); ++r) {
    Check(Holds(Input(c, r), static_cast<std::size_t>(me), c.dtype,
                recvs[static_cast<std::size_t>(r)]),
          c, "a part of the output");
  }
}

void CaseRunner::RunGather(const Case& c) {
  const bool is_root = comm_.rank() == c.root;
  std::size_t total = 0;
  for (int r = 0; r < comm_.world(); ++r) total += Part(c, r);
  Memory input(comm_, c, Part(c, comm_.rank()));
  Memory output(comm_, c, is_root ? total : 0);
  FillFrom(Input(c, comm_.rank()), 0, c.dtype, input.bytes());
  std::vector<Bytes> parts;
  std::size_t begin = 0;
  for (int r = 0; is_root && r < comm_.world(); begin += Part(c, r++)) {
    parts.push_back(output.elements(begin, Part(c, r), c.dtype));
  }
  comm_.Run(Collective::Gather(input.bytes(), parts, c.dtype, c.root));
  for (int r = 0; is_root && r < comm_.world(); ++r) {
    Check(Holds(Input(c, r), 0, c.dtype, parts[static_cast<std::size_t>(r)]), c,
          "a part of the output");
  }
}

void CaseRunner::RunScatter(const Case& c) {
  const bool is_root = comm_.rank() == c.root;
  std::size_t total = 0;
  for (int r = 0; r < comm_.world(); ++r) total += Part(c, r);
  Memory input(comm_, c, is_root ? total : 0);
  Memory output(comm_, c, Part(c, comm_.rank()));
  std::vector<ConstBytes> parts;
  std::size_t begin = 0;
  for (int r = 0; is_root && r < comm_.world(); begin += Part(c, r++)) {
    const Bytes part = input.elements(begin, Part(c, r), c.dtype);
    FillFrom(Input(c, c.root), static_cast<std::size_t>(r), c.dtype, part);
    parts.push_back(part);
  }
  comm_.Run(Collective::Scatter(std::move(parts), output.bytes(), c.dtype, c.root));
  Check(Holds(Input(c, c.root), static_cast<std::size_t>(comm_.rank()), c.dtype, output.bytes()), c,
        "the output");
}

void CaseRunner::Run(const Case& c) {
  switch (c.op) {
    case Op::kBarrier:
      return comm_.Barrier();
    case Op::kAllReduce:
      return RunAllReduce(c);
    case Op::kReduce:
      return RunReduce(c);
    case Op::kBroadcast:
      return RunBroadcast(c);
    case Op::kAllGather:
      return RunAllGather(c);
    case Op::kReduceScatter:
      return RunReduceScatter(c);
    case Op::kAllToAll:
      return RunAllToAll(c);
    case Op::kGather:
      return RunGather(c);
    case Op::kScatter:
      return RunScatter(c);
  }
}

namespace {

void RunAll(comm::Communicator& comm, const Layout& layout, const std::vector<Case>& cases) {
  CaseRunner runner(comm, layout);
  for (const Case& c : cases) {
    if (::testing::Test::HasFailure())
      break;  // one failure says enough; the peers see it, or that we left
    runner.Run(c);
  }
}

}  // namespace

void RunCases(int world, const Layout& layout, const std::vector<Case>& cases) {
  RunRanks(world, layout, [&](comm::Communicator& comm) { RunAll(comm, layout, cases); });
}

void RunCasesInProcesses(int world, const Layout& layout, const std::vector<Case>& cases) {
  for (const std::string& error : RunProcesses(
           world, layout, [&](comm::Communicator& comm) { RunAll(comm, layout, cases); })) {
    EXPECT_EQ(error, "") << layout.name << ", world " << world;
  }
}

}  // namespace orca::testing
