#include <cstring>

#include "comm/group.h"
#include "comm/local_ops.h"

namespace orca::comm {
namespace {

void ShareFrom(Group& group, int local_root, Bytes data, bool registered) {
  if (group.local.size() == 1) return;
  LocalShare share;
  share.theirs.resize(static_cast<std::size_t>(group.local.size()));
  if (group.local.index() == local_root) {
    share.mine = {data};
  } else {
    share.theirs[static_cast<std::size_t>(local_root)] = {data};
  }
  share.registered = registered;
  LocalShareAll(group.local, share);
}

// The ranks of the root's host each carry a slice to every other host.
void CrossHosts(Group& group, int root, Bytes data, DType dtype) {
  const Topology& topology = group.topology;
  const int root_host = topology.host_of(root);
  const std::vector<int>& carriers = topology.ranks_on(root_host);
  const std::vector<Bytes> slices = Cut(data, carriers.size(), dtype);
  const bool at_root = topology.host() == root_host;
  const int local_size = group.local.size();
  LocalShare share;
  share.theirs.resize(static_cast<std::size_t>(local_size));
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (at_root) {
      if (topology.local_index() != static_cast<int>(i)) continue;
      for (int host = 0; host < topology.hosts(); ++host) {
        if (host != root_host)
          group.mesh.Send(topology.counterpart(host, static_cast<int>(i)), slices[i]);
      }
      continue;
    }
    const int receiver = static_cast<int>(i) % local_size;
    if (receiver == topology.local_index()) {
      group.mesh.Recv(carriers[i], slices[i]);
      share.mine.push_back(slices[i]);
    } else {
      share.theirs[static_cast<std::size_t>(receiver)].push_back(slices[i]);
    }
  }
  group.mesh.Flush();
  if (!at_root && local_size > 1) LocalShareAll(group.local, share);
}

}  // namespace

void RunBroadcast(Group& group, const Collective& call) {
  const Bytes data = call.outputs[0];
  const bool is_root = call.root == group.topology.rank();
  if (group.topology.is_local(call.root)) {
    const int local_root = group.topology.local_index_of(call.root);
    if (data.size() > LocalGroup::kInlineBytes) {
      ShareFrom(group, local_root, data, true);
    } else if (!is_root && !data.empty()) {
      std::memcpy(data.data(), group.local.payload(local_root), data.size());
    }
  }
  if (group.one_host()) return;
  GreetHosts(group);
  CrossHosts(group, call.root, data, call.dtype);
}

}  // namespace orca::comm
