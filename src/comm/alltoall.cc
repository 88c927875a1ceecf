#include <cstring>

#include "comm/group.h"
#include "comm/local_ops.h"

namespace orca::comm {

void ExchangeParts(Group& group, Pattern pattern, int root, const std::vector<ConstBytes>& sends,
                   const std::vector<Bytes>& recvs) {
  const Topology& topology = group.topology;
  const auto talks = [&](int from, int to) {
    return pattern == Pattern::kAll || root == (pattern == Pattern::kToRoot ? to : from);
  };
  if (pattern != Pattern::kAll) GreetHosts(group);
  for (int rank = 0; rank < topology.world(); ++rank) {
    if (topology.is_local(rank)) continue;
    if (talks(rank, topology.rank())) group.mesh.Recv(rank, recvs[static_cast<std::size_t>(rank)]);
    if (talks(topology.rank(), rank)) group.mesh.Send(rank, sends[static_cast<std::size_t>(rank)]);
  }
  LocalExchange local;
  for (const int rank : topology.local_ranks()) {
    local.sends.push_back(sends[static_cast<std::size_t>(rank)]);
    local.recvs.push_back(recvs[static_cast<std::size_t>(rank)]);
  }
  LocalExchangeAll(group.local, local);
  group.mesh.Flush();
}

void RunAllToAll(Group& group, const Collective& call) {
  if (call.inputs.size() == group.world() && call.outputs.size() == group.world()) {
    ExchangeParts(group, Pattern::kAll, 0, call.inputs, call.outputs);
    return;
  }
  const std::size_t bytes = call.inputs[0].size() / group.world();
  std::vector<ConstBytes> sends;
  std::vector<Bytes> recvs;
  for (std::size_t r = 0; r < group.world(); ++r) {
    sends.push_back(call.inputs[0].subspan(r * bytes, bytes));
    recvs.push_back(call.outputs[0].subspan(r * bytes, bytes));
  }
  ExchangeParts(group, Pattern::kAll, 0, sends, recvs);
}

void RunGather(Group& group, const Collective& call) {
  std::vector<ConstBytes> sends(group.world());
  std::vector<Bytes> recvs(group.world());
  sends[static_cast<std::size_t>(call.root)] = call.inputs[0];
  if (call.root == group.topology.rank()) recvs = call.outputs;
  ExchangeParts(group, Pattern::kToRoot, call.root, sends, recvs);
}

void RunScatter(Group& group, const Collective& call) {
  std::vector<ConstBytes> sends(group.world());
  std::vector<Bytes> recvs(group.world());
  recvs[static_cast<std::size_t>(call.root)] = call.outputs[0];
  if (call.root == group.topology.rank()) sends = call.inputs;
  ExchangeParts(group, Pattern::kFromRoot, call.root, sends, recvs);
}

}  // namespace orca::comm
