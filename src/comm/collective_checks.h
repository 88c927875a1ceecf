// From a caller's Collective to what the ranks compare.
#pragma once

#include "comm/call_record.h"
#include "comm/segment_arena.h"
#include "orca/comm/communicator.h"

namespace orca::comm {

/// Throws kInvalidArgument, saying what is wrong, when the call can never work on this rank.
void CheckCall(const Collective& call, int rank, int world);
/// What the other ranks see of the call.
CallRecord RecordOf(const Collective& call, const SegmentArena& arena);

}  // namespace orca::comm
