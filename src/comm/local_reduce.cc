#include <algorithm>
#include <cstring>

#include "comm/local_ops.h"

namespace orca::comm {
namespace {

constexpr std::size_t kLine = 64;
// Cores that compete for memory get unequal shares of it, a third more or less for a whole call.
// Where there are enough blocks, every rank takes the next one when it is done with its last.
// Smaller blocks cost more in restarted prefetches than they gain.
constexpr std::size_t kBlock = std::size_t{256} << 10;
constexpr std::size_t kBlocksToShareOut = 8;  // a rank

std::vector<double> Factors(const LocalGroup& group, ReduceOp op) {
  std::vector<double> factors;
  if (op != ReduceOp::kPreMulSum) return factors;
  for (int peer = 0; peer < group.size(); ++peer) factors.push_back(group.record(peer).factor);
  return factors;
}

// Everybody's memory is mapped here: read this rank's part of all of them, write the result where
// it is wanted.
void ReduceInPlace(LocalGroup& group, const LocalReduction& call, const Reduction& reduction) {
  const ConstBytes own = call.inputs[static_cast<std::size_t>(group.index())];
  if (!own.empty()) {
    const auto offset = static_cast<std::size_t>(own.data() - call.base);
    const auto buffers = group.PeerBuffers(const_cast<std::byte*>(call.base), offset);
    std::byte* const target =
        call.to_one >= 0 ? buffers[static_cast<std::size_t>(call.to_one)] : call.result.data();
    const std::vector<const std::byte*> sources(buffers.begin(), buffers.end());
    const std::span<std::byte* const> targets =
        call.to_all ? buffers : std::span<std::byte* const>(&target, 1);
    Reduce(reduction, sources, targets, own.size() / SizeOf(call.dtype));
  }
  group.Sync();  // nobody may touch its buffer before all have read and written it
}

// One piece of every part at a time, in three overlapping stages: while piece k is copied into the
// staging buffers, piece k-1 is reduced by the owner of its part, and piece k-2 is copied out. One
// Sync ends all three.
class StagedReduction {
 public:
  StagedReduction(LocalGroup& group, const LocalReduction& call, const Reduction& reduction)
      : group_(group),
        call_(call),
        reduction_(reduction),
        me_(static_cast<std::size_t>(group.index())) {
    const std::size_t size = static_cast<std::size_t>(group.size());
    piece_ = group.staging_bytes() / size / 64 * 64;
    for (const ConstBytes& part : call.inputs) longest_ = std::max(longest_, part.size());
    sources_.resize(size);
  }

  void Run() {
    const std::size_t pieces = (longest_ + piece_ - 1) / piece_;
    const bool copies_out = call_.to_all || call_.to_one >= 0;
    const std::size_t phases = pieces + (copies_out ? 2 : 1);
    for (std::size_t phase = 0; phase < phases; ++phase) {
      if (phase < pieces) CopyIn(phase);
      if (phase >= 1 && phase - 1 < pieces) ReduceOwn(phase - 1);
      if (copies_out && phase >= 2) CopyOut(phase - 2);
      if (phase + 1 < phases) group_.Sync();
    }
  }

 private:
  std::size_t PieceBytes(std::size_t part_bytes, std::size_t piece) const {
    const std::size_t begin = piece * piece_;
    return begin < part_bytes ? std::min(piece_, part_bytes - begin) : 0;
  }

  void CopyIn(std::size_t piece) {
    std::byte* staging = group_.staging(group_.index(), piece);
    for (std::size_t owner = 0; owner < call_.inputs.size(); ++owner) {
      const ConstBytes part = call_.inputs[owner];
      const std::size_t bytes = PieceBytes(part.size(), piece);
      if (owner == me_ || bytes == 0) continue;
      std::memcpy(staging + owner * piece_, part.data() + piece * piece_, bytes);
    }
  }

  void ReduceOwn(std::size_t piece) {
    const std::size_t bytes = PieceBytes(call_.inputs[me_].size(), piece);
    if (bytes == 0) return;
    for (std::size_t peer = 0; peer < sources_.size(); ++peer) {
      sources_[peer] = peer == me_ ? call_.inputs[me_].data() + piece * piece_
                                   : group_.staging(static_cast<int>(peer), piece) + me_ * piece_;
    }
    std::byte* const staged = group_.staging(group_.index(), piece) + me_ * piece_;
    targets_.clear();
    if (call_.to_one < 0 || call_.to_one == group_.index()) {
      targets_.push_back(call_.result.data() + piece * piece_);
    }
    if (call_.to_all || (call_.to_one >= 0 && call_.to_one != group_.index()))
      targets_.push_back(staged);
    Reduce(reduction_, sources_, targets_, bytes / SizeOf(call_.dtype));
  }

  void CopyOut(std::size_t piece) {
    if (!call_.to_all && call_.to_one != group_.index()) return;
    for (std::size_t owner = 0; owner < call_.outputs.size(); ++owner) {
      const Bytes part = call_.outputs[owner];
      const std::size_t bytes = PieceBytes(part.size(), piece);
      if (owner == me_ || bytes == 0) continue;
      std::memcpy(part.data() + piece * piece_,
                  group_.staging(static_cast<int>(owner), piece) + owner * piece_, bytes);
    }
  }

  LocalGroup& group_;
  const LocalReduction& call_;
  const Reduction& reduction_;
  std::size_t me_;
  std::size_t piece_ = 0;
  std::size_t longest_ = 0;
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> targets_;
};

}  // namespace

void LocalAllReduceInPlace(LocalGroup& group, const Reduction& reduction, Bytes data) {
  const auto size = static_cast<std::size_t>(group.size());
  const auto reduce = [&](std::size_t begin, std::size_t end) {
    const auto buffers = group.PeerBuffers(data.data(), begin);
    Reduce(reduction, {const_cast<const std::byte* const*>(buffers.data()), size}, buffers,
           (end - begin) / SizeOf(reduction.dtype));
  };
  const bool shares_out = data.size() >= size * kBlocksToShareOut * kBlock;
  if (shares_out) {
    for (std::size_t begin = group.TakeTicket() * kBlock; begin < data.size();
         begin = group.TakeTicket() * kBlock) {
      reduce(begin, std::min(begin + kBlock, data.size()));
    }
  } else {
    const auto index = static_cast<std::size_t>(group.index());
    const std::size_t share = (data.size() / size + kLine - 1) / kLine * kLine;
    const std::size_t begin = std::min(index * share, data.size());
    const std::size_t end = index + 1 == size ? data.size() : std::min(begin + share, data.size());
    if (begin < end) reduce(begin, end);
  }
  group.Sync();  // nobody may touch its buffer before all have read and written it
  if (shares_out) group.ResetTickets();
}

void LocalReduce(LocalGroup& group, const LocalReduction& call) {
  const std::vector<double> factors = Factors(group, call.op);
  const Reduction reduction{
      .dtype = call.dtype, .op = call.op, .factors = factors, .divisor = call.divisor};
  if (call.base != nullptr && group.AllRegistered()) {
    ReduceInPlace(group, call, reduction);
  } else {
    StagedReduction(group, call, reduction).Run();
  }
}

}  // namespace orca::comm
