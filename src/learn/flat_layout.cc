#include "orca/learn/flat_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "orca/core/error.h"

namespace orca::learn {
namespace {

constexpr std::size_t kLine = 64;
// Far more than any machine has; sums of a few of them do not overflow.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 56;

std::size_t RoundUp(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

FlatLayout::FlatLayout(std::vector<FlatTensor> tensors) : tensors_(std::move(tensors)) {
  std::set<std::string> names;
  for (const FlatTensor& tensor : tensors_) {
    if (!names.insert(tensor.name).second)
      throw Error(Code::kInvalidArgument,
                  fmt::format("two tensors are called '{}'; rename one", tensor.name));
    if (tensor.count > kMostBytes / SizeOf(tensor.dtype))
      throw Error(Code::kInvalidArgument,
                  fmt::format("'{}' has {} elements; no machine has that much memory", tensor.name,
                              tensor.count));
  }
  order_.resize(tensors_.size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  std::ranges::stable_sort(order_, {}, [this](std::size_t i) {
    return std::tuple(tensors_[i].dtype, tensors_[i].group);
  });
  offsets_.resize(tensors_.size());
  for (const std::size_t i : order_) {
    offsets_[i] = size_;
    size_ += RoundUp(bytes(i));
    if (size_ > kMostBytes)
      throw Error(Code::kInvalidArgument,
                  fmt::format("the tensors up to '{}' take more memory than any machine has",
                              tensors_[i].name));
  }
}

std::vector<FlatLayout::Run> FlatLayout::Runs(std::span<const int> kinds) const {
  if (kinds.size() != tensors_.size())
    throw Error(Code::kInvalidArgument, fmt::format("{} kinds for {} tensors; give one each",
                                                    kinds.size(), tensors_.size()));
  std::vector<Run> runs;
  bool goes_on = false;
  for (const std::size_t i : order_) {
    const FlatTensor& tensor = tensors_[i];
    const Range range{offsets_[i], offsets_[i] + RoundUp(bytes(i))};
    if (kinds[i] < 0) {
      goes_on = false;
    } else if (goes_on && runs.back().dtype == tensor.dtype && runs.back().group == tensor.group &&
               runs.back().kind == kinds[i]) {
      runs.back().range.end = range.end;
    } else {
      runs.push_back(
          {.dtype = tensor.dtype, .group = tensor.group, .kind = kinds[i], .range = range});
      goes_on = true;
    }
  }
  return runs;
}

FlatLayout::Range FlatLayout::Share(const Range& range, int rank, int world) {
  const std::size_t lines = range.size() / kLine;
  const auto border = [&](int before) {
    const auto count = static_cast<std::size_t>(world);
    const auto shares = static_cast<std::size_t>(before);
    const std::size_t extra = std::min(shares, lines % count);
    return range.begin + (lines / count * shares + extra) * kLine;
  };
  return {border(rank), border(rank + 1)};
}

}  // namespace orca::learn
