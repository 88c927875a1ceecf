#include "orca/learn/gradient_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "learn/finite_copy.h"
#include "orca/comm/kernels.h"
#include "orca/core/error.h"

namespace orca::learn {
namespace {

constexpr std::size_t kLine = 64;

std::size_t RoundUp(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

/// What a worker tells the others; one byte a tensor follows it.
struct alignas(kLine) GradientExchange::Slot {
  double weight;
  double loss;
  std::uint64_t rows;
  std::int64_t bad_tensor;
  std::uint64_t leaves;
};

// The slots and flags of all workers, and behind them their banks.
std::size_t GradientExchange::BlockSize(const FlatLayout& layout, int world) {
  const std::size_t slot = sizeof(Slot) + RoundUp(layout.tensors().size());
  return static_cast<std::size_t>(world) * (slot + layout.size());
}

GradientExchange::GradientExchange(std::shared_ptr<comm::Communicator> group, FlatLayout layout,
                                   std::span<std::byte> block, bool shared)
    : group_(std::move(group)), layout_(std::move(layout)), block_(block), shared_(shared) {
  const std::size_t needed = BlockSize(layout_, shared_ ? group_->world() : 1);
  if (block_.size() < needed)
    throw Error(Code::kInvalidArgument,
                fmt::format("the block has {} bytes; {} are needed", block_.size(), needed));
  for (const FlatTensor& tensor : layout_.tensors())
    if (!comm::Supports(comm::ReduceOp::kPreMulSum, tensor.dtype))
      throw Error(Code::kInvalidArgument,
                  fmt::format("'{}' is of type {}; only floating-point tensors have gradients",
                              tensor.name, Name(tensor.dtype)));
  // Groups do not matter for the sum: one run a type.
  for (const FlatLayout::Run& run : layout_.Runs(std::vector<int>(layout_.tensors().size(), 0))) {
    if (!whole_.empty() && whole_.back().dtype == run.dtype) {
      whole_.back().range.end = run.range.end;
    } else {
      whole_.push_back(run);
    }
  }
  SlotOf(group_->rank()).bad_tensor = -1;
}

std::span<std::byte> GradientExchange::Bank(int rank) const {
  const std::size_t slot = sizeof(Slot) + RoundUp(layout_.tensors().size());
  const auto workers = static_cast<std::size_t>(shared_ ? group_->world() : 1);
  const auto index = static_cast<std::size_t>(shared_ ? rank : 0);
  return block_.subspan(workers * slot + index * layout_.size(), layout_.size());
}

GradientExchange::Slot& GradientExchange::SlotOf(int rank) const {
  const std::size_t slot = sizeof(Slot) + RoundUp(layout_.tensors().size());
  const auto index = static_cast<std::size_t>(shared_ ? rank : 0);
  return *std::launder(reinterpret_cast<Slot*>(block_.data() + index * slot));
}

std::span<std::byte> GradientExchange::UsedOf(int rank) const {
  auto* const slot = reinterpret_cast<std::byte*>(&SlotOf(rank));
  return {slot + sizeof(Slot), layout_.tensors().size()};
}

void GradientExchange::Collect(std::span<const void* const> gradients) {
  if (gradients.size() != layout_.tensors().size())
    throw Error(Code::kInvalidArgument,
                fmt::format("{} gradients for {} tensors; give one each, or null", gradients.size(),
                            layout_.tensors().size()));
  const std::span<std::byte> mine = bank();
  const std::span<std::byte> used = UsedOf(group_->rank());
  std::int64_t bad = -1;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const std::span<std::byte> to = mine.subspan(layout_.offset(i), layout_.bytes(i));
    used[i] = std::byte{gradients[i] != nullptr};
    if (gradients[i] == nullptr) {
      std::memset(to.data(), 0, to.size());
    } else if (!CopyAndCheck(layout_.tensors()[i].dtype, gradients[i], to) && bad < 0) {
      bad = static_cast<std::int64_t>(i);
    }
  }
  SlotOf(group_->rank()).bad_tensor = bad;
}

StepSum GradientExchange::Meet(const StepPart& mine, LossKind kind) {
  Slot& slot = SlotOf(group_->rank());
  slot.weight = mine.weight;
  slot.loss = mine.loss;
  slot.rows = mine.rows;
  slot.leaves = mine.leaves ? 1 : 0;
  if (shared_) {
    group_->Barrier();
    return Sum(kind);
  }
  // Every worker gets a copy of all slots, and reads those instead of shared ones.
  const std::size_t size = sizeof(Slot) + RoundUp(layout_.tensors().size());
  const std::span<const std::byte> own{reinterpret_cast<const std::byte*>(&slot), size};
  mine_.resize(size * static_cast<std::size_t>(group_->world()));
  group_->AllGather(own, mine_, DType::kUInt8);
  return Sum(kind);
}

StepSum GradientExchange::Sum(LossKind kind) {
  const std::size_t size = sizeof(Slot) + RoundUp(layout_.tensors().size());
  const std::byte* const first = shared_ ? block_.data() : mine_.data();
  StepSum sum;
  sum.used.assign(layout_.tensors().size(), false);
  sources_.clear();
  for (int rank = 0; rank < group_->world(); ++rank) {
    const std::byte* const at = first + static_cast<std::size_t>(rank) * size;
    Slot slot{};
    std::memcpy(&slot, at, sizeof(Slot));
    sum.rows += slot.rows;
    sum.all_leave = sum.all_leave && slot.leaves != 0;
    if (slot.weight == 0.0) continue;
    sources_.push_back(rank);
    sum.weight += slot.weight;
    if (sum.bad_loss < 0 && !std::isfinite(slot.loss)) sum.bad_loss = rank;
    if (sum.bad_gradient < 0 && slot.bad_tensor >= 0) {
      sum.bad_gradient = rank;
      sum.bad_tensor = static_cast<int>(slot.bad_tensor);
    }
    const std::byte* const used = at + sizeof(Slot);
    for (std::size_t i = 0; i < sum.used.size(); ++i)
      if (used[i] != std::byte{0}) sum.used[i] = true;
  }
  factors_.clear();
  own_factor_ = 0.0;
  for (const int rank : sources_) {
    Slot slot{};
    std::memcpy(&slot, first + static_cast<std::size_t>(rank) * size, sizeof(Slot));
    const double factor = kind == LossKind::kSum ? 1.0 : slot.weight / sum.weight;
    factors_.push_back(factor);
    sum.loss += factor * slot.loss;
    if (rank == group_->rank()) own_factor_ = factor;
  }
  return sum;
}

void GradientExchange::ReduceRange(DType dtype, const FlatLayout::Range& range) {
  if (range.size() == 0) return;
  std::byte* const to = bank().data() + range.begin;
  if (sources_.empty()) {
    std::memset(to, 0, range.size());
    return;
  }
  const bool alone = sources_.size() == 1 && factors_[0] == 1.0;
  if (alone && sources_[0] == group_->rank()) return;
  std::vector<const std::byte*> from;
  for (const int rank : sources_) from.push_back(Bank(rank).data() + range.begin);
  comm::Reduction reduction{.dtype = dtype};
  if (!alone) {
    reduction.op = comm::ReduceOp::kPreMulSum;
    reduction.factors = factors_;
  }
  comm::Reduce(reduction, from, {&to, 1}, range.size() / SizeOf(dtype));
}

JoinedGradient GradientExchange::Joined() const {
  JoinedGradient joined{.factors = factors_};
  for (const int rank : sources_) joined.banks.push_back(Bank(rank).data());
  return joined;
}

JoinedGradient GradientExchange::JoinedIn(const FlatLayout& layout,
                                          std::span<const std::byte> block, int world,
                                          LossKind kind) {
  const std::size_t size = sizeof(Slot) + RoundUp(layout.tensors().size());
  const auto banks = static_cast<std::size_t>(world) * size;
  if (block.size() < BlockSize(layout, world))
    throw Error(Code::kInvalidArgument, fmt::format("the block has {} bytes; {} are needed",
                                                    block.size(), BlockSize(layout, world)));
  JoinedGradient joined;
  double total = 0.0;
  for (int rank = 0; rank < world; ++rank) {
    Slot slot{};
    std::memcpy(&slot, block.data() + static_cast<std::size_t>(rank) * size, sizeof(Slot));
    if (slot.weight == 0.0) continue;
    total += slot.weight;
    joined.factors.push_back(slot.weight);
    joined.banks.push_back(block.data() + banks + static_cast<std::size_t>(rank) * layout.size());
  }
  for (double& factor : joined.factors) factor = kind == LossKind::kSum ? 1.0 : factor / total;
  return joined;
}

double GradientExchange::SquaresOfShare(std::span<const FlatLayout::Run> runs,
                                        std::optional<std::pair<double, double>> limits) {
  constexpr std::size_t kPiece = 16 << 10;
  alignas(kLine) std::array<std::byte, kPiece> joined;
  double sum = 0.0;
  const auto add = [&]<typename T>(T, std::size_t bytes) {
    const auto* const values = reinterpret_cast<const T*>(joined.data());
    for (std::size_t i = 0; i < bytes / sizeof(T); ++i) {
      auto value = static_cast<double>(values[i]);
      if (limits) value = std::clamp(value, limits->first, limits->second);
      sum += value * value;
    }
  };
  const JoinedGradient gradient = Joined();
  comm::Reduction reduction{.op = comm::ReduceOp::kPreMulSum, .factors = gradient.factors};
  std::byte* const to = joined.data();
  for (const FlatLayout::Run& run : runs) {
    reduction.dtype = run.dtype;
    const FlatLayout::Range share = FlatLayout::Share(run.range, group_->rank(), group_->world());
    for (std::size_t at = share.begin; at < share.end; at += kPiece) {
      const std::size_t bytes = std::min(kPiece, share.end - at);
      std::vector<const std::byte*> from;
      for (const std::byte* bank : gradient.banks) from.push_back(bank + at);
      comm::Reduce(reduction, from, {&to, 1}, bytes / SizeOf(run.dtype));
      if (run.dtype == DType::kFloat64) {
        add(double{}, bytes);
      } else {
        add(float{}, bytes);
      }
    }
  }
  return sum;
}

void GradientExchange::ReduceShare(std::span<const FlatLayout::Run> runs) {
  if (!shared_) {
    ReduceAll();
    return;
  }
  for (const FlatLayout::Run& run : runs)
    ReduceRange(run.dtype, FlatLayout::Share(run.range, group_->rank(), group_->world()));
}

void GradientExchange::ReduceAll() {
  if (shared_) {
    ReduceShare(whole_);
    group_->Barrier();
    return;
  }
  // A worker without a weight has anything in its bank.
  if (own_factor_ == 0.0) std::memset(bank().data(), 0, bank().size());
  for (const FlatLayout::Run& run : whole_) {
    const auto data = bank().subspan(run.range.begin, run.range.size());
    group_->Run(comm::Collective::AllReduce(data, run.dtype, comm::ReduceOp::kPreMulSum,
                                            own_factor_ == 0.0 ? 1.0 : own_factor_));
  }
}

void GradientExchange::Spread(std::span<void* const> gradients) const {
  for (const FlatLayout::Run& run : whole_) {
    const int shares = shared_ ? group_->world() : 1;
    for (int rank = 0; rank < shares; ++rank) {
      const FlatLayout::Range share = FlatLayout::Share(run.range, rank, shares);
      const std::span<std::byte> from = Bank(rank);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        if (gradients[i] == nullptr) continue;
        const std::size_t begin = std::max(share.begin, layout_.offset(i));
        const std::size_t end = std::min(share.end, layout_.offset(i) + layout_.bytes(i));
        if (begin < end)
          std::memcpy(static_cast<std::byte*>(gradients[i]) + (begin - layout_.offset(i)),
                      from.data() + begin, end - begin);
      }
    }
  }
}

void GradientExchange::Leave() {
  if (shared_) group_->Barrier();
}

}  // namespace orca::learn
