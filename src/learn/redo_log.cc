#include "orca/learn/redo_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "learn/stamps.h"
#include "orca/core/error.h"
#include "orca/core/mutant.h"

namespace orca::learn {
namespace {

constexpr std::size_t kLine = 64;
// Bytes of the weights that go to the staging area at a time: with their states and two gradients
// they fit into the first level of a cache. 16 KiB took a quarter longer.
constexpr std::size_t kChunk = 4 << 10;
constexpr std::size_t kStaging = 4 * kChunk;  // the weights and three states

std::size_t RoundUp(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

std::size_t SizeOfRank(const RedoLog::Shape& shape) {
  return kLine + RoundUp(shape.parts * sizeof(UpdatePart)) + kStaging;
}

}  // namespace

/// Of one worker; its parts and its staging area follow.
struct alignas(kLine) RedoLog::Head {
  std::atomic<std::uint64_t> number;  // the commit that its parts are of
  std::atomic<std::uint64_t>
      cursor;  // twice the chunks that are done, and 1 for one that is staged
  std::uint64_t parts;
  Step step;
};

std::size_t RedoLog::BlockSize(const Shape& shape) {
  static_assert(sizeof(Head) == kLine);
  return static_cast<std::size_t>(shape.world) * SizeOfRank(shape);
}

RedoLog::RedoLog(std::span<std::byte> block, Shape shape, std::vector<std::span<std::byte>> regions)
    : block_(block), shape_(shape), regions_(std::move(regions)) {
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  static_assert(std::is_trivially_copyable_v<UpdatePart>);
  if (block_.size() < BlockSize(shape_))
    throw Error(Code::kInvalidArgument, fmt::format("the block has {} bytes; {} are needed",
                                                    block_.size(), BlockSize(shape_)));
}

RedoLog::Head& RedoLog::HeadOf(int rank) const {
  return *std::launder(
      reinterpret_cast<Head*>(block_.data() + static_cast<std::size_t>(rank) * SizeOfRank(shape_)));
}

std::span<UpdatePart> RedoLog::PartsOf(int rank) const {
  auto* const first = reinterpret_cast<std::byte*>(&HeadOf(rank)) + sizeof(Head);
  return {std::launder(reinterpret_cast<UpdatePart*>(first)), shape_.parts};
}

std::byte* RedoLog::StagingOf(int rank) const {
  return reinterpret_cast<std::byte*>(&HeadOf(rank)) + sizeof(Head) +
         RoundUp(shape_.parts * sizeof(UpdatePart));
}

void RedoLog::Check(const UpdatePart& part) const {
  const auto fits = [&](std::uint64_t region, std::uint64_t from) {
    return region < regions_.size() && from <= part.run.range.begin &&
           part.run.range.begin <= part.run.range.end &&
           part.run.range.end - from <= regions_[region].size();
  };
  bool good = fits(0, 0);
  for (std::size_t i = 0; i < StateCount(part.rule); ++i)
    good = good && part.regions[i] != 0 && fits(part.regions[i], part.area);
  if (!good)
    throw Error(Code::kInvalidArgument,
                fmt::format("the parameters from {} to {} are not in their {} regions",
                            part.run.range.begin, part.run.range.end, regions_.size()));
}

void RedoLog::Begin(int rank, std::uint64_t number, const Step& step,
                    std::span<const UpdatePart> parts) {
  Head& head = HeadOf(rank);
  head.number.store(0, std::memory_order_release);
  Stamp();
  std::ranges::copy(parts, PartsOf(rank).begin());
  head.parts = parts.size();
  Stamp();
  head.step = step;
  head.cursor.store(0, std::memory_order_relaxed);
  Stamp();
  head.number.store(number, std::memory_order_release);
  Stamp();
}

void RedoLog::Run(int rank, const JoinedGradient& gradient) {
  Head& head = HeadOf(rank);
  std::byte* const staging = StagingOf(rank);
  const std::uint64_t cursor =
      IsMutant("redo-cursor") ? 0 : head.cursor.load(std::memory_order_acquire);
  std::uint64_t chunk = 0;
  std::vector<const void*> from(gradient.banks.size());
  for (const UpdatePart& part : PartsOf(rank).first(head.parts)) {
    const FlatLayout::Range share = FlatLayout::Share(part.run.range, rank, shape_.world);
    const std::size_t states = StateCount(part.rule);
    for (std::size_t at = share.begin; at < share.end; at += kChunk, ++chunk) {
      if (2 * chunk + 2 <= cursor) continue;
      const std::size_t bytes = std::min(kChunk, share.end - at);
      UpdateSpan place{.weights = regions_[0].data() + at};
      UpdateSpan staged{.weights = staging};
      for (std::size_t i = 0; i < states; ++i) {
        place.states[i] = regions_[part.regions[i]].data() + (at - part.area);
        staged.states[i] = staging + (i + 1) * kChunk;
      }
      if (2 * chunk + 1 > cursor) {
        std::ranges::transform(gradient.banks, from.begin(),
                               [at](const std::byte* bank) { return bank + at; });
        learn::Update(part.rule, part.run.dtype, from, gradient.factors, place, staged,
                      bytes / SizeOf(part.run.dtype));
        Stamp();
        head.cursor.store(2 * chunk + 1, std::memory_order_release);
      }
      Stamp();
      std::memcpy(place.weights, staged.weights, bytes);
      for (std::size_t i = 0; i < states; ++i) {
        Stamp();
        std::memcpy(place.states[i], staged.states[i], bytes);
      }
      Stamp();
      head.cursor.store(2 * chunk + 2, std::memory_order_release);
      Stamp();
    }
  }
}

void RedoLog::Update(int rank, std::uint64_t number, const Step& step,
                     std::span<const UpdatePart> parts, const JoinedGradient& gradient) {
  if (parts.size() > shape_.parts)
    throw Error(Code::kInvalidArgument, fmt::format("{} parts are updated; there is room for {}",
                                                    parts.size(), shape_.parts));
  for (const UpdatePart& part : parts) Check(part);
  Begin(rank, number, step, parts);
  Run(rank, gradient);
}

std::optional<RedoLog::Step> RedoLog::Finish(std::uint64_t number, const JoinedGradient& gradient) {
  int first = -1;
  for (int rank = 0; rank < shape_.world && first < 0; ++rank)
    if (HeadOf(rank).number.load(std::memory_order_acquire) == number) first = rank;
  if (first < 0 || IsMutant("redo-finish")) return std::nullopt;
  const Step step = HeadOf(first).step;
  const auto known = PartsOf(first).first(HeadOf(first).parts);
  const std::vector<UpdatePart> parts(known.begin(), known.end());
  for (const UpdatePart& part : parts) Check(part);
  for (int rank = 0; rank < shape_.world; ++rank) {
    if (HeadOf(rank).number.load(std::memory_order_acquire) != number)
      Begin(rank, number, step, parts);
    Run(rank, gradient);
  }
  return step;
}

}  // namespace orca::learn
