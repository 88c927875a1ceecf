// What a rank says about the collective it enters.
#pragma once

#include <cstdint>
#include <string>

#include "orca/comm/types.h"

namespace orca::comm {

/// A call in 48 bytes, for shared memory; its first fields also travel in every frame. Ranks
/// compare them.
struct CallRecord {
  Op op = Op::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp reduce = ReduceOp::kSum;
  bool registered = false;  ///< The buffer lies in the arena: `segment` and `offset` say where.
  std::int32_t root = 0;
  std::uint64_t count = 0;  ///< Elements; the same on every rank.
  std::uint64_t part =
      0;  ///< Bytes that this rank contributes; may differ by rank in the unequal forms.
  double factor = 1.0;
  std::uint64_t offset = 0;
  std::uint32_t segment = 0;
  std::uint32_t cut = 0;  ///< Checksum of the sizes of the parts, where all ranks must cut alike.

  /// Whether two ranks made the same call.
  bool Matches(const CallRecord& other) const {
    return op == other.op && dtype == other.dtype && reduce == other.reduce && root == other.root &&
           count == other.count;
  }
};
static_assert(sizeof(CallRecord) == 48);

/// "allreduce #12 of 1024 float32 (sum)".
std::string Describe(const CallRecord& record, std::uint64_t sequence);
/// The text of a mismatch: both calls, each with who made it.
std::string DescribeMismatch(const std::string& mine, const CallRecord& my_record,
                             const std::string& theirs, const CallRecord& their_record,
                             std::uint64_t sequence);

}  // namespace orca::comm
