// From a caller's Collective to what the ranks compare.
#pragma once

#include "comm/call_record.h"
#include "comm/segment_arena.h"
#include "orca/comm/communicator.h"

namespace orca::comm {

/// Throws kInvalidArgument, saying what is wrong, when the call can never work on this rank.
void CheckCall(const Collective& call, int rank, int world);
/// Brings the input of a call that works on its output there. Before the arrival: peers read
/// registered memory as soon as all have arrived.
void MoveIntoPlace(const Collective& call, int rank);
/// What the other ranks see of the call.
CallRecord RecordOf(const Collective& call, const SegmentArena& arena, bool one_host);
/// The data that rides on Arrive, one behind the other; empty when it is too long or read where it
/// is.
std::span<const ConstBytes> ArrivalPayload(const Collective& call, const CallRecord& record,
                                           int rank);

}  // namespace orca::comm
