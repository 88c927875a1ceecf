// One collective call as a point in the space of everything that can differ, run and checked on
// every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "orca/comm/communicator.h"
#include "testing/ranks.h"
#include "testing/reference.h"

namespace orca::testing {

/// A call of a test program; every rank runs it with its own data.
struct Case {
  int world = 1;
  std::size_t layout = 0;  ///< In Layouts().
  comm::Op op = comm::Op::kAllReduce;
  comm::DType dtype = comm::DType::kFloat32;
  comm::ReduceOp reduce = comm::ReduceOp::kSum;
  std::size_t count = 0;  ///< Elements, of the whole or of the longest part.
  int root = 0;
  bool in_place = false;
  bool registered = false;
  bool unequal = false;
};

/// Shared memory, TCP, and hosts of two and of three ranks.
const std::vector<Layout>& Layouts();
std::string Describe(const Case& c);

/// Keeps enough of `cases` that every pair of values of two properties that occurs in them still
/// occurs.
std::vector<Case> CoverPairs(std::vector<Case> cases, std::uint64_t seed);

/// Runs cases on one rank and checks what comes out; failures are reported to gtest. Remembers
/// expected tiles.
class CaseRunner {
 public:
  CaseRunner(comm::Communicator& comm, const Layout& layout);
  void Run(const Case& c);

 private:
  class Memory;

  void RunAllReduce(const Case& c);
  void RunReduce(const Case& c);
  void RunReduceScatter(const Case& c);
  void RunBroadcast(const Case& c);
  void RunAllGather(const Case& c);
  void RunAllToAll(const Case& c);
  void RunGather(const Case& c);
  void RunScatter(const Case& c);
  void Check(bool good, const Case& c, const char* what);
  /// How many elements rank `r` contributes or receives.
  std::size_t Part(const Case& c, int r) const;
  const Buffer& Input(const Case& c, int rank);
  const Buffer& Expected(const Case& c);

  comm::Communicator& comm_;
  std::vector<std::vector<int>> hosts_;
  std::map<std::tuple<comm::DType, comm::ReduceOp, int>, Buffer> tiles_;  // rank -1: reduced
};

/// Runs `cases`, which all have this world and layout, in one group of threads.
void RunCases(int world, const Layout& layout, const std::vector<Case>& cases);
/// As above, in forked processes.
void RunCasesInProcesses(int world, const Layout& layout, const std::vector<Case>& cases);

}  // namespace orca::testing
