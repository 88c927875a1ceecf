#include "comm/parts_reducer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "comm/local_ops.h"
#include "orca/comm/kernels.h"

namespace orca::comm {
namespace {

constexpr std::size_t kWindowTotal = std::size_t{8}
                                     << 20;  // received and not yet reduced, from all hosts
constexpr std::size_t kWindowMin = std::size_t{64} << 10;
constexpr std::size_t kWindowMax = std::size_t{512} << 10;

}  // namespace

PartsReducer::PartsReducer(Group& group, const Collective& call, PartsReduction parts)
    : group_(group),
      topology_(group.topology),
      call_(call),
      parts_(std::move(parts)),
      wire_(PacksForWire(group, call)),
      hosts_(static_cast<std::size_t>(topology_.hosts())),
      window_(std::clamp(kWindowTotal / (hosts_ - 1) / 64 * 64, kWindowMin, kWindowMax)),
      partials_(group.world()) {}

void PartsReducer::Run() {
  for (int host = 0; host < topology_.hosts(); ++host) ReduceLocally(host);
  PostSends();
  ReduceAcrossHosts();
}

bool PartsReducer::Owns(int rank) const {
  return topology_.local_index_of(rank) % group_.local.size() == group_.local.index();
}

int PartsReducer::Sender(int host) const {
  return topology_.counterpart(host, topology_.local_index());
}

// Partial results of this host for the ranks of `host`, each left with its local owner.
void PartsReducer::ReduceLocally(int host) {
  const std::vector<int>& targets = topology_.ranks_on(host);
  const auto local_size = static_cast<std::size_t>(group_.local.size());
  if (local_size == 1 && call_.reduce != ReduceOp::kPreMulSum) {
    for (const int rank : targets) partials_[static_cast<std::size_t>(rank)] = Input(rank);
    return;
  }
  for (std::size_t first = 0; first < targets.size(); first += local_size) {
    LocalReduction reduction{.dtype = call_.dtype, .op = call_.reduce, .base = parts_.base};
    for (std::size_t i = 0; i < local_size; ++i) {
      const bool exists = first + i < targets.size();
      reduction.inputs.push_back(exists ? Input(targets[first + i]) : ConstBytes{});
    }
    const ConstBytes own = reduction.inputs[static_cast<std::size_t>(group_.local.index())];
    scratch_.emplace_back(own.size());
    reduction.result = scratch_.back();
    group_.local.Sync();  // the staging buffers may still be in use by the step before
    LocalReduce(group_.local, reduction);
    const std::size_t mine = first + static_cast<std::size_t>(group_.local.index());
    if (mine < targets.size()) partials_[static_cast<std::size_t>(targets[mine])] = scratch_.back();
  }
}

void PartsReducer::PostSends() {
  for (int rank = 0; rank < topology_.world(); ++rank) {
    if (topology_.is_local(rank) || !Owns(rank)) continue;
    ForWindows(Input(rank).size(), window_, [&](std::size_t begin, std::size_t bytes) {
      group_.mesh.Send(rank,
                       wire_.Pack(partials_[static_cast<std::size_t>(rank)].subspan(begin, bytes)));
    });
  }
}

void PartsReducer::PostReceives(Window& window, std::size_t bytes) {
  window.buffers.resize(hosts_);
  window.numbers.resize(hosts_);
  for (int host = 0; host < topology_.hosts(); ++host) {
    if (host == topology_.host()) continue;
    const auto h = static_cast<std::size_t>(host);
    window.buffers[h].resize(wire_.packs() ? bytes / 2 : bytes);
    window.numbers[h] = group_.mesh.Recv(Sender(host), window.buffers[h]);
  }
}

// While one window is added up, the next one arrives.
void PartsReducer::ReduceAcrossHosts() {
  const std::size_t total = parts_.result.size();
  std::array<Window, 2> windows;
  PostReceives(windows[0], std::min(window_, total));
  std::size_t index = 0;
  ForWindows(total, window_, [&](std::size_t begin, std::size_t bytes) {
    const std::size_t next = begin + bytes;
    if (next < total) PostReceives(windows[(index + 1) % 2], std::min(window_, total - next));
    AddUp(windows[index % 2], begin, bytes);
    if (parts_.on_result && bytes > 0) parts_.on_result(begin, next);
    ++index;
  });
}

void PartsReducer::AddUp(Window& window, std::size_t begin, std::size_t bytes) {
  std::vector<const std::byte*> sources(hosts_);
  for (int host = 0; host < topology_.hosts(); ++host) {
    const auto h = static_cast<std::size_t>(host);
    if (host == topology_.host()) {
      sources[h] = partials_[group_.rank()].data() + begin;
      continue;
    }
    group_.mesh.Wait(Sender(host), window.numbers[h]);
    sources[h] = window.buffers[h].data();
    if (wire_.packs()) {
      unpacked_.resize(std::max(unpacked_.size(), hosts_));
      unpacked_[h].resize(bytes);
      wire_.Unpack(window.buffers[h], unpacked_[h]);
      sources[h] = unpacked_[h].data();
    }
  }
  if (bytes == 0) return;
  // Factors were applied in the first step.
  const Reduction reduction{
      .dtype = call_.dtype,
      .op = call_.reduce == ReduceOp::kPreMulSum ? ReduceOp::kSum : call_.reduce,
      .divisor = group_.world()};
  std::byte* const target = parts_.result.data() + begin;
  Reduce(reduction, sources, std::span(&target, 1), bytes / SizeOf(call_.dtype));
}

}  // namespace orca::comm
