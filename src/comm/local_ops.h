// The three ways in which the ranks of a host move data: reduce, share, exchange.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/local_group.h"
#include "orca/comm/communicator.h"
#include "orca/comm/kernels.h"

namespace orca::comm {

/// Each local rank reduces one part of everybody's data.
struct LocalReduction {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::size_t divisor = 0;  ///< For averages: see Reduction.
  std::vector<ConstBytes>
      inputs;    ///< inputs[j]: this rank's values for the part that local rank j reduces.
  Bytes result;  ///< Receives the part of this rank.
  /// outputs[j] receives the part of local rank j; empty buffers (or no list): not wanted here. All
  /// ranks agree on who wants what: everybody (`to_all`), nobody but the owners, or one rank.
  std::vector<Bytes> outputs;
  bool to_all = false;
  int to_one = -1;
  /// Where the buffer begins that holds all inputs and that the call record names; nothing when
  /// they are scattered. When all ranks registered theirs, it is read where it is, and outputs, if
  /// any, are written where the inputs are.
  const std::byte* base = nullptr;
};
void LocalReduce(LocalGroup& group, const LocalReduction& call);

/// The special case in which all ranks registered their buffers and want the whole result in them:
/// the quickest, so it allocates nothing. Not for kPreMulSum.
void LocalAllReduceInPlace(LocalGroup& group, const Reduction& reduction, Bytes data);

/// Every rank contributes something that all the others read.
struct LocalShare {
  std::vector<ConstBytes> mine;
  std::vector<std::vector<Bytes>>
      theirs;  ///< theirs[j]: where the contribution of local rank j goes; empty for this rank.
  bool registered =
      false;  ///< Contributions that the call records register are read where they are.
};
void LocalShareAll(LocalGroup& group, const LocalShare& call);

/// Every rank sends something else to every other.
struct LocalExchange {
  std::vector<ConstBytes> sends;  ///< One a local rank; this rank's own is copied too.
  std::vector<Bytes> recvs;
};
void LocalExchangeAll(LocalGroup& group, const LocalExchange& call);

}  // namespace orca::comm
