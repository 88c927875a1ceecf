#include <utility>

#include "comm/group.h"
#include "comm/local_ops.h"
#include "comm/parts_reducer.h"

namespace orca::comm {

bool PacksForWire(const Group& group, const Collective& call) {
  return group.wire_bf16 && call.dtype == DType::kFloat32 &&
         (call.reduce == ReduceOp::kSum || call.reduce == ReduceOp::kAverage ||
          call.reduce == ReduceOp::kPreMulSum);
}

void RunReduceScatter(Group& group, const Collective& call) {
  const Bytes result = call.outputs[0];
  const bool flat = call.inputs.size() == 1 && group.world() != 1;
  std::vector<ConstBytes> inputs = call.inputs;
  if (flat) {
    inputs.clear();
    for (std::size_t r = 0; r < group.world(); ++r) {
      inputs.push_back(call.inputs[0].subspan(r * result.size(), result.size()));
    }
  }
  const std::byte* base = call.inputs.size() == 1 ? call.inputs[0].data() : nullptr;
  if (!group.one_host()) {
    GreetHosts(group);
    PartsReducer reducer(
        group, call,
        {.inputs = std::move(inputs), .base = base, .result = result, .on_result = {}});
    reducer.Run();
    group.mesh.Flush();
    return;
  }
  LocalReduction reduction{.dtype = call.dtype,
                           .op = call.reduce,
                           .divisor = group.world(),
                           .inputs = std::move(inputs),
                           .result = result,
                           .outputs = {},
                           .base = base};
  std::size_t offset = 0;
  std::size_t total = 0;
  for (std::size_t r = 0; r < reduction.inputs.size(); ++r) {
    if (r == group.rank()) offset = total;
    total += reduction.inputs[r].size();
  }
  if (total <= LocalGroup::kInlineBytes) {
    if (!result.empty()) ReducePayloads(group, reduction, result, offset);
  } else {
    LocalReduce(group.local, reduction);
  }
}

}  // namespace orca::comm
