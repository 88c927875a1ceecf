// What a collective works with.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "comm/call_record.h"
#include "comm/local_group.h"
#include "comm/local_ops.h"
#include "comm/mesh.h"
#include "comm/topology.h"
#include "comm/wire.h"
#include "orca/comm/communicator.h"

namespace orca::comm {

/// The parts of a group, borrowed for one collective. Every collective is written for hosts that
/// each hold some ranks: the ranks of a host work in shared memory (`local`), the hosts talk over
/// TCP (`mesh`). One host, or one rank a host, are the same code with an empty half.
struct Group {
  const Topology& topology;
  LocalGroup& local;
  Mesh& mesh;
  bool wire_bf16 = false;

  bool one_host() const { return topology.hosts() == 1; }
  std::size_t world() const { return static_cast<std::size_t>(topology.world()); }
  std::size_t rank() const { return static_cast<std::size_t>(topology.rank()); }
};

// The collectives, one file each. All ranks of the host have arrived (LocalGroup::Arrive) and agree
// on the call.
void RunBarrier(Group& group);
void RunAllReduce(Group& group, const Collective& call);
void RunReduce(Group& group, const Collective& call);
void RunBroadcast(Group& group, const Collective& call);
void RunAllGather(Group& group, const Collective& call);
void RunReduceScatter(Group& group, const Collective& call);
void RunAllToAll(Group& group, const Collective& call);
void RunGather(Group& group, const Collective& call);
void RunScatter(Group& group, const Collective& call);

// Steps that several collectives share.

/// Cuts `data` into `parts` pieces of whole elements, as equal as cache lines allow; the last ones
/// may be empty.
std::vector<Bytes> Cut(Bytes data, std::size_t parts, DType dtype);
/// Gives everybody's part, which lies in outputs[rank], to everybody.
void ShareParts(Group& group, const std::vector<Bytes>& outputs);
/// The same, where the parts are already on their way to the other hosts, in messages of `window`
/// bytes (0: one each).
void CollectParts(Group& group, const std::vector<Bytes>& outputs, std::size_t window, Wire& wire);
/// Reduces what all ranks of the host brought along on arrival, from byte `offset`.
void ReducePayloads(Group& group, const LocalReduction& reduction, Bytes result,
                    std::size_t offset);
/// Whether the values of this call cross hosts as bfloat16.
bool PacksForWire(const Group& group, const Collective& call);
/// Sends sends[r] to every rank r and receives recvs[r] from it; or only to, or from, the root.
enum class Pattern { kAll, kToRoot, kFromRoot };
void ExchangeParts(Group& group, Pattern pattern, int root, const std::vector<ConstBytes>& sends,
                   const std::vector<Bytes>& recvs);
/// Lets the hosts' first ranks compare their calls, for collectives in which two hosts may have
/// nothing to tell.
void GreetHosts(Group& group);

}  // namespace orca::comm
