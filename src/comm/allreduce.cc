#include <algorithm>
#include <array>
#include <utility>

#include "comm/group.h"
#include "comm/local_ops.h"
#include "comm/parts_reducer.h"
#include "comm/wire.h"
#include "orca/comm/kernels.h"

namespace orca::comm {
namespace {

// The hosts' first ranks exchange what their hosts have, and give the sum to the others.
void ReduceShortAcrossHosts(Group& group, const Collective& call, Bytes data) {
  const Topology& topology = group.topology;
  if (topology.local_index() == 0) {
    const auto hosts = static_cast<std::size_t>(topology.hosts());
    std::vector<std::vector<std::byte>> received(hosts);
    std::vector<const std::byte*> sources(hosts);
    for (int host = 0; host < topology.hosts(); ++host) {
      const auto h = static_cast<std::size_t>(host);
      sources[h] = data.data();
      if (host == topology.host()) continue;
      received[h].resize(data.size());
      sources[h] = received[h].data();
      group.mesh.Recv(topology.leader(host), received[h]);
      group.mesh.Send(topology.leader(host), data);
    }
    group.mesh.Flush();
    const Reduction reduction{
        .dtype = call.dtype,
        .op = call.reduce == ReduceOp::kPreMulSum ? ReduceOp::kSum : call.reduce,
        .divisor = group.world()};
    std::byte* const target = data.data();
    if (!data.empty())
      Reduce(reduction, sources, std::span(&target, 1), data.size() / SizeOf(call.dtype));
  }
  if (group.local.size() == 1) return;
  LocalShare share;
  share.theirs.resize(static_cast<std::size_t>(group.local.size()));
  if (topology.local_index() == 0) {
    share.mine = {data};
  } else {
    share.theirs[0] = {data};
  }
  LocalShareAll(group.local, share);
}

// Every rank reduces its part over all hosts, and sends each piece of it on as soon as it is final.
void ReduceLongAcrossHosts(Group& group, const Collective& call, Bytes data) {
  const Topology& topology = group.topology;
  const std::vector<Bytes> parts = Cut(data, group.world(), call.dtype);
  Wire wire(PacksForWire(group, call));
  PartsReduction reduction;
  reduction.inputs.assign(parts.begin(), parts.end());
  reduction.base = data.data();
  reduction.result = parts[group.rank()];
  reduction.on_result = [&](std::size_t begin, std::size_t end) {
    const Bytes final_part = parts[group.rank()].subspan(begin, end - begin);
    const ConstBytes packed = wire.Pack(final_part);
    wire.Unpack(packed, final_part);  // all ranks get the same bits, this one too
    for (int host = 0; host < topology.hosts(); ++host) {
      if (host != topology.host())
        group.mesh.Send(topology.counterpart(host, topology.local_index()), packed);
    }
  };
  PartsReducer reducer(group, call, std::move(reduction));
  reducer.Run();
  CollectParts(group, parts, reducer.window(), wire);
}

}  // namespace

void ReducePayloads(Group& group, const LocalReduction& reduction, Bytes result,
                    std::size_t offset) {
  const auto size = static_cast<std::size_t>(group.local.size());
  std::array<const std::byte*, 16> few{};
  std::vector<const std::byte*> many(size > few.size() ? size : 0);
  const std::span<const std::byte*> sources =
      many.empty() ? std::span(few).first(size) : std::span(many);
  std::vector<double> factors;
  for (std::size_t peer = 0; peer < size; ++peer) {
    sources[peer] = group.local.payload(static_cast<int>(peer)) + offset;
    if (reduction.op == ReduceOp::kPreMulSum)
      factors.push_back(group.local.record(static_cast<int>(peer)).factor);
  }
  std::byte* const target = result.data();
  Reduce({.dtype = reduction.dtype,
          .op = reduction.op,
          .factors = factors,
          .divisor = reduction.divisor},
         sources, std::span(&target, 1), result.size() / SizeOf(reduction.dtype));
}

std::vector<Bytes> Cut(Bytes data, std::size_t parts, DType dtype) {
  constexpr std::size_t kLine = 64;
  const std::size_t unit = std::max(kLine, SizeOf(dtype));
  const std::size_t share = (data.size() / parts + unit - 1) / unit * unit;
  std::vector<Bytes> result;
  std::size_t begin = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t bytes =
        part + 1 == parts ? data.size() - begin : std::min(share, data.size() - begin);
    result.push_back(data.subspan(begin, bytes));
    begin += bytes;
  }
  return result;
}

// Whether everybody's data came along with its arrival.
bool RodeOnArrival(const Group& group, std::size_t bytes) {
  if (bytes > LocalGroup::kInlineBytes) return false;
  for (int peer = 0; peer < group.local.size(); ++peer) {
    if (group.local.registered(peer)) return false;
  }
  return true;
}

void RunAllReduce(Group& group, const Collective& call) {
  const Bytes data = call.outputs[0];
  if (RodeOnArrival(group, data.size())) {
    const LocalReduction reduction{
        .dtype = call.dtype, .op = call.reduce, .divisor = group.one_host() ? group.world() : 0};
    if (!data.empty()) ReducePayloads(group, reduction, data, 0);
    if (!group.one_host()) ReduceShortAcrossHosts(group, call, data);
    return;
  }
  if (!group.one_host()) {
    ReduceLongAcrossHosts(group, call, data);
    return;
  }
  if (group.local.AllRegistered() && call.reduce != ReduceOp::kPreMulSum) {
    const Reduction reduction{.dtype = call.dtype, .op = call.reduce, .divisor = group.world()};
    LocalAllReduceInPlace(group.local, reduction, data);
    return;
  }
  const std::vector<Bytes> parts = Cut(data, group.world(), call.dtype);
  LocalReduce(group.local, {.dtype = call.dtype,
                            .op = call.reduce,
                            .divisor = group.world(),
                            .inputs = {parts.begin(), parts.end()},
                            .result = parts[group.rank()],
                            .outputs = parts,
                            .to_all = true,
                            .base = data.data()});
}

}  // namespace orca::comm
