#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/collective_checks.h"
#include "comm/group.h"
#include "orca/comm/communicator.h"
#include "orca/core/crc32c.h"

namespace orca::comm {
namespace {

Collective Make(Op op, DType dtype, BufferList<ConstBytes> inputs, BufferList<Bytes> outputs) {
  Collective call;
  call.op = op;
  call.dtype = dtype;
  call.inputs = std::move(inputs);
  call.outputs = std::move(outputs);
  return call;
}

Collective MakeReduction(Op op, DType dtype, ReduceOp reduce, double factor,
                         BufferList<ConstBytes> inputs, BufferList<Bytes> outputs) {
  Collective call = Make(op, dtype, std::move(inputs), std::move(outputs));
  call.reduce = reduce;
  call.factor = factor;
  return call;
}

template <typename Buffer>
std::size_t TotalBytes(const BufferList<Buffer>& buffers) {
  std::size_t total = 0;
  for (const auto& buffer : buffers) total += buffer.size();
  return total;
}

template <typename Buffer>
std::size_t LongestBytes(const BufferList<Buffer>& buffers) {
  std::size_t longest = 0;
  for (const auto& buffer : buffers) longest = std::max(longest, buffer.size());
  return longest;
}

[[noreturn]] void Refuse(const Collective& call, const std::string& why) {
  throw Error(Code::kInvalidArgument, fmt::format("{}: {}", Name(call.op), why));
}

void CheckElements(const Collective& call, std::size_t bytes) {
  const std::size_t element = SizeOf(call.dtype);
  if (bytes % element != 0) {
    Refuse(call, fmt::format("{} bytes are not a whole number of {} ({} bytes each)", bytes,
                             Name(call.dtype), element));
  }
}

void CheckCount(const Collective& call, const char* what, std::size_t got, std::size_t wanted) {
  if (got != wanted) Refuse(call, fmt::format("got {} {}, wants {}", got, what, wanted));
}

// Differs when two ranks cut the same total differently. One input is cut into equal parts.
std::uint32_t CutOf(const Collective& call) {
  if (TotalBytes(call.inputs) == 0) return 0;
  const bool flat = call.inputs.size() == 1;
  const std::size_t parts =
      flat ? call.inputs[0].size() / call.outputs[0].size() : call.inputs.size();
  std::uint32_t checksum = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    const std::uint64_t bytes = flat ? call.outputs[0].size() : call.inputs[part].size();
    checksum = Crc32c(&bytes, sizeof(bytes), checksum);
  }
  return checksum;
}

bool HasRoot(Op op) {
  return op == Op::kReduce || op == Op::kBroadcast || op == Op::kGather || op == Op::kScatter;
}

bool Reduces(Op op) {
  return op == Op::kAllReduce || op == Op::kReduce || op == Op::kReduceScatter;
}

void CheckBuffers(const Collective& call, int rank, std::size_t world) {
  const bool is_root = call.root == rank;
  switch (call.op) {
    case Op::kBarrier:
      return;
    case Op::kAllReduce:
    case Op::kReduce:
    case Op::kBroadcast:
      CheckCount(call, "inputs", call.inputs.size(), 1);
      CheckCount(call, "outputs", call.outputs.size(), 1);
      CheckCount(call, "output bytes", call.outputs[0].size(), call.inputs[0].size());
      return;
    case Op::kAllGather:
      CheckCount(call, "inputs", call.inputs.size(), 1);
      if (call.outputs.size() == 1) {
        CheckCount(call, "output bytes", call.outputs[0].size(), call.inputs[0].size() * world);
      } else {
        CheckCount(call, "outputs", call.outputs.size(), world);
        CheckCount(call, "bytes in this rank's output",
                   call.outputs[static_cast<std::size_t>(rank)].size(), call.inputs[0].size());
      }
      return;
    case Op::kReduceScatter:
      CheckCount(call, "outputs", call.outputs.size(), 1);
      if (call.inputs.size() == 1) {
        CheckCount(call, "input bytes", call.inputs[0].size(), call.outputs[0].size() * world);
      } else {
        CheckCount(call, "inputs", call.inputs.size(), world);
        CheckCount(call, "bytes in this rank's input",
                   call.inputs[static_cast<std::size_t>(rank)].size(), call.outputs[0].size());
      }
      return;
    case Op::kAllToAll:
      if (call.inputs.size() == 1 && call.outputs.size() == 1) {
        if (call.inputs[0].size() % world != 0) {
          Refuse(call, fmt::format("{} bytes cannot be cut into {} equal parts; give the sizes",
                                   call.inputs[0].size(), world));
        }
        CheckCount(call, "output bytes", call.outputs[0].size(), call.inputs[0].size());
      } else {
        CheckCount(call, "inputs", call.inputs.size(), world);
        CheckCount(call, "outputs", call.outputs.size(), world);
      }
      return;
    case Op::kGather:
      CheckCount(call, "inputs", call.inputs.size(), 1);
      CheckCount(call, "outputs", call.outputs.size(), is_root ? world : 0);
      return;
    case Op::kScatter:
      CheckCount(call, "outputs", call.outputs.size(), 1);
      CheckCount(call, "inputs", call.inputs.size(), is_root ? world : 0);
      return;
  }
  Refuse(call, "there is no such operation");
}

}  // namespace

Collective Collective::Barrier() { return {}; }

Collective Collective::AllReduce(Bytes data, DType dtype, ReduceOp reduce, double factor) {
  return MakeReduction(Op::kAllReduce, dtype, reduce, factor, {data}, {data});
}

Collective Collective::AllReduce(ConstBytes input, Bytes output, DType dtype, ReduceOp reduce,
                                 double factor) {
  return MakeReduction(Op::kAllReduce, dtype, reduce, factor, {input}, {output});
}

Collective Collective::Reduce(Bytes data, DType dtype, int root, ReduceOp reduce, double factor) {
  Collective call = MakeReduction(Op::kReduce, dtype, reduce, factor, {data}, {data});
  call.root = root;
  return call;
}

Collective Collective::Broadcast(Bytes data, DType dtype, int root) {
  Collective call = Make(Op::kBroadcast, dtype, {data}, {data});
  call.root = root;
  return call;
}

Collective Collective::AllGather(ConstBytes input, Bytes output, DType dtype) {
  return Make(Op::kAllGather, dtype, {input}, {output});
}

Collective Collective::AllGather(ConstBytes input, std::vector<Bytes> outputs, DType dtype) {
  return Make(Op::kAllGather, dtype, {input}, std::move(outputs));
}

Collective Collective::ReduceScatter(ConstBytes input, Bytes output, DType dtype, ReduceOp reduce,
                                     double factor) {
  return MakeReduction(Op::kReduceScatter, dtype, reduce, factor, {input}, {output});
}

Collective Collective::ReduceScatter(std::vector<ConstBytes> inputs, Bytes output, DType dtype,
                                     ReduceOp reduce, double factor) {
  return MakeReduction(Op::kReduceScatter, dtype, reduce, factor, std::move(inputs), {output});
}

Collective Collective::AllToAll(ConstBytes input, Bytes output, DType dtype) {
  return Make(Op::kAllToAll, dtype, {input}, {output});
}

Collective Collective::AllToAll(std::vector<ConstBytes> inputs, std::vector<Bytes> outputs,
                                DType dtype) {
  return Make(Op::kAllToAll, dtype, std::move(inputs), std::move(outputs));
}

Collective Collective::Gather(ConstBytes input, std::vector<Bytes> outputs, DType dtype, int root) {
  Collective call = Make(Op::kGather, dtype, {input}, std::move(outputs));
  call.root = root;
  return call;
}

Collective Collective::Scatter(std::vector<ConstBytes> inputs, Bytes output, DType dtype,
                               int root) {
  Collective call = Make(Op::kScatter, dtype, std::move(inputs), {output});
  call.root = root;
  return call;
}

void CheckCall(const Collective& call, int rank, int world) {
  if (static_cast<int>(call.dtype) >= kDTypeCount ||
      static_cast<int>(call.reduce) >= kReduceOpCount) {
    Refuse(call, fmt::format("type {} or operator {} is unknown", static_cast<int>(call.dtype),
                             static_cast<int>(call.reduce)));
  }
  if (HasRoot(call.op) && (call.root < 0 || call.root >= world)) {
    Refuse(call, fmt::format("root {} is not a rank of this group of {}", call.root, world));
  }
  if (Reduces(call.op) && !Supports(call.reduce, call.dtype)) {
    Refuse(call, fmt::format("{} is not defined for {}", Name(call.reduce), Name(call.dtype)));
  }
  if (call.timeout.count() < 0) {
    Refuse(call, fmt::format("a timeout of {} ms is negative; 0 means the group's",
                             call.timeout.count()));
  }
  CheckBuffers(call, rank, static_cast<std::size_t>(world));
  for (const ConstBytes& buffer : call.inputs) CheckElements(call, buffer.size());
  for (const Bytes& buffer : call.outputs) CheckElements(call, buffer.size());
}

void MoveIntoPlace(const Collective& call, int rank) {
  const bool works_on_output = call.op == Op::kAllReduce || call.op == Op::kReduce ||
                               (call.op == Op::kBroadcast && call.root == rank);
  if (!works_on_output || call.inputs[0].empty() || call.inputs[0].data() == call.outputs[0].data())
    return;
  std::memmove(call.outputs[0].data(), call.inputs[0].data(), call.inputs[0].size());
}

CallRecord RecordOf(const Collective& call, const SegmentArena& arena, bool one_host) {
  CallRecord record;
  record.op = call.op;
  record.dtype = call.dtype;
  if (Reduces(call.op)) record.reduce = call.reduce;
  if (HasRoot(call.op)) record.root = call.root;
  record.factor = call.factor;
  const std::size_t element = SizeOf(call.dtype);
  ConstBytes shared;  // what peers may read (and, in place, write) where it is
  switch (call.op) {
    case Op::kAllReduce:
    case Op::kReduce:
    case Op::kBroadcast:
      shared = call.outputs[0];
      record.part = shared.size();
      record.count = shared.size() / element;
      break;
    case Op::kAllGather:
      shared = call.inputs[0];
      record.part = shared.size();
      record.count = TotalBytes(call.outputs) / element;
      break;
    case Op::kReduceScatter:
      if (call.inputs.size() == 1) shared = call.inputs[0];
      record.part = TotalBytes(call.inputs);
      record.count = record.part / element;
      record.cut = CutOf(call);
      break;
    case Op::kAllToAll:
    case Op::kGather:
    case Op::kScatter:
      record.part = LongestBytes(call.inputs);  // pairs compare their sizes
      break;
    case Op::kBarrier:
      break;
  }
  // In place, an all-reduce moves half the cache lines, but needs a second barrier. Between hosts
  // the choice must not depend on what one host alone knows.
  const bool in_place = call.op == Op::kAllReduce && one_host;
  const std::size_t worthwhile = in_place ? LocalGroup::kTinyBytes : LocalGroup::kInlineBytes;
  if (shared.size() > worthwhile) {
    if (const auto place = arena.Find(shared.data(), shared.size())) {
      record.registered = true;
      record.segment = place->segment;
      record.offset = place->offset;
    }
  }
  return record;
}

std::span<const ConstBytes> ArrivalPayload(const Collective& call, const CallRecord& record,
                                           int rank) {
  bool rides = false;
  switch (call.op) {
    case Op::kAllReduce:
    case Op::kReduce:
    case Op::kAllGather:
    case Op::kReduceScatter:
      rides = true;
      break;
    case Op::kBroadcast:
      rides = call.root == rank;
      break;
    default:
      break;
  }
  if (!rides || record.registered || TotalBytes(call.inputs) > LocalGroup::kInlineBytes) return {};
  return call.inputs;
}

}  // namespace orca::comm
