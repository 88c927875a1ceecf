#include <cstring>

#include "comm/group.h"
#include "comm/local_ops.h"
#include "comm/parts_reducer.h"

namespace orca::comm {
namespace {

// Every rank reduces its part over all hosts and sends it to the root.
void ReduceAcrossHosts(Group& group, const Collective& call, Bytes data) {
  const std::vector<Bytes> parts = Cut(data, group.world(), call.dtype);
  std::vector<std::byte> scratch(parts[group.rank()].size());
  const bool is_root = call.root == group.topology.rank();
  const Bytes result = is_root ? parts[group.rank()] : Bytes(scratch);
  PartsReducer reducer(group, call,
                       {.inputs = {parts.begin(), parts.end()},
                        .base = data.data(),
                        .result = result,
                        .on_result = {}});
  reducer.Run();
  std::vector<ConstBytes> sends(group.world());
  std::vector<Bytes> recvs(group.world());
  sends[static_cast<std::size_t>(call.root)] = result;
  if (is_root) recvs = parts;
  group.mesh.Flush();  // whoever waits here does not send, and its peers may wait for that
  group.local.Sync();
  ExchangeParts(group, Pattern::kToRoot, call.root, sends, recvs);
}

}  // namespace

void RunReduce(Group& group, const Collective& call) {
  const Bytes data = call.outputs[0];
  if (!group.one_host()) {
    GreetHosts(group);
    ReduceAcrossHosts(group, call, data);
    return;
  }
  const bool is_root = call.root == group.topology.rank();
  if (data.size() <= LocalGroup::kInlineBytes) {
    if (is_root && !data.empty()) {
      ReducePayloads(group, {.dtype = call.dtype, .op = call.reduce, .divisor = group.world()},
                     data, 0);
    }
    return;
  }
  const std::vector<Bytes> parts = Cut(data, group.world(), call.dtype);
  LocalReduce(group.local, {.dtype = call.dtype,
                            .op = call.reduce,
                            .divisor = group.world(),
                            .inputs = {parts.begin(), parts.end()},
                            .result = parts[group.rank()],
                            .outputs = parts,
                            .to_one = group.topology.local_index_of(call.root),
                            .base = data.data()});
}

}  // namespace orca::comm
