#include <algorithm>
#include <cstring>

#include "comm/group.h"
#include "comm/local_ops.h"

namespace orca::comm {
namespace {

std::vector<Bytes> OutputParts(const Collective& call, std::size_t world) {
  if (call.outputs.size() != 1) return call.outputs;
  const std::size_t bytes = call.inputs[0].size();
  std::vector<Bytes> parts;
  for (std::size_t r = 0; r < world; ++r)
    parts.push_back(call.outputs[0].subspan(r * bytes, bytes));
  return parts;
}

void CheckSizes(const Group& group, const Collective& call, const std::vector<Bytes>& parts) {
  const std::vector<int>& ranks = group.topology.local_ranks();
  for (std::size_t peer = 0; peer < ranks.size(); ++peer) {
    const auto& record = group.local.record(static_cast<int>(peer));
    const std::size_t expected = parts[static_cast<std::size_t>(ranks[peer])].size();
    if (record.part == expected) continue;
    throw Error(Code::kMismatch, std::string(Name(call.op)) + ": " +
                                     group.topology.Name(ranks[peer]) + " contributes " +
                                     std::to_string(record.part) + " bytes, but " +
                                     group.topology.Name(group.topology.rank()) + " expects " +
                                     std::to_string(expected) + "; give both the same size");
  }
}

}  // namespace

void RunAllGather(Group& group, const Collective& call) {
  const std::vector<Bytes> parts = OutputParts(call, group.world());
  CheckSizes(group, call, parts);
  const Bytes own = parts[group.rank()];
  if (!own.empty() && own.data() != call.inputs[0].data()) {
    std::memmove(own.data(), call.inputs[0].data(), own.size());
  }
  if (!group.one_host()) {
    GreetHosts(group);
    ShareParts(group, parts);
    return;
  }
  // Short contributions rode on the arrival; the others are shared.
  LocalShare share;
  share.theirs.resize(parts.size());
  share.registered = true;
  bool any_long = false;
  for (std::size_t peer = 0; peer < parts.size(); ++peer) {
    const bool is_long = parts[peer].size() > LocalGroup::kInlineBytes;
    any_long |= is_long;
    if (peer == group.rank()) {
      if (is_long) share.mine = {call.inputs[0]};
    } else if (is_long) {
      share.theirs[peer] = {parts[peer]};
    } else if (!parts[peer].empty()) {
      std::memcpy(parts[peer].data(), group.local.payload(static_cast<int>(peer)),
                  parts[peer].size());
    }
  }
  if (any_long) LocalShareAll(group.local, share);
}

void ShareParts(Group& group, const std::vector<Bytes>& outputs) {
  for (int host = 0; host < group.topology.hosts(); ++host) {
    if (host == group.topology.host()) continue;
    group.mesh.Send(group.topology.counterpart(host, group.topology.local_index()),
                    outputs[group.rank()]);
  }
  Wire plain(false);
  CollectParts(group, outputs, 0, plain);
}

// Rank i of a host receives the parts of the ranks with local index i of every other host, and
// shares them.
void CollectParts(Group& group, const std::vector<Bytes>& outputs, std::size_t window, Wire& wire) {
  const Topology& topology = group.topology;
  const int local_size = group.local.size();
  LocalShare share;
  share.theirs.resize(static_cast<std::size_t>(local_size));
  std::vector<std::pair<Bytes, Bytes>> packed;  // received, and where it belongs
  for (int rank = 0; rank < topology.world(); ++rank) {
    const Bytes part = outputs[static_cast<std::size_t>(rank)];
    const int carrier =
        topology.local_index_of(rank) % (topology.is_local(rank) ? topology.world() : local_size);
    if (carrier != topology.local_index()) {
      share.theirs[static_cast<std::size_t>(carrier)].push_back(part);
      continue;
    }
    share.mine.push_back(part);
    if (topology.is_local(rank)) continue;
    const auto receive = [&](Bytes piece) {
      const Bytes place = wire.Place(piece);
      group.mesh.Recv(rank, place);
      if (wire.packs()) packed.emplace_back(place, piece);
    };
    if (window == 0) receive(part);
    for (std::size_t begin = 0; window != 0 && begin < part.size(); begin += window) {
      receive(part.subspan(begin, std::min(window, part.size() - begin)));
    }
  }
  group.mesh.Flush();
  for (const auto& [received, part] : packed) wire.Unpack(received, part);
  if (local_size == 1) return;
  group.local.Sync();  // the staging buffers may still be in use by the step before
  LocalShareAll(group.local, share);
}

}  // namespace orca::comm
