#include "comm/group.h"

namespace orca::comm {

void GreetHosts(Group& group) {
  const Topology& topology = group.topology;
  if (topology.local_index() != 0) return;
  for (int host = 0; host < topology.hosts(); ++host) {
    if (host == topology.host()) continue;
    group.mesh.Recv(topology.leader(host), {});
    group.mesh.Send(topology.leader(host), {});
  }
}

void RunBarrier(Group& group) {
  if (group.one_host()) return;  // all have arrived
  GreetHosts(group);
  group.mesh.Flush();
  group.local.Sync();
}

}  // namespace orca::comm
