#include "orca/learn/undo_log.h"

#include <fmt/format.h>

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
// A worker may note for the commit after next: the next one is about to be written, and the last
// one counts until then.
constexpr std::uint64_t kNotes = 3;

std::size_t RoundUp(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

std::size_t PiecesSize(const UndoLog::Shape& shape) {
  return RoundUp(shape.pieces * sizeof(UndoLog::Piece));
}

}  // namespace

/// Of one worker; its pieces and its notes follow.
struct alignas(kLine) UndoLog::Head {
  std::atomic<std::uint64_t> saved;          // the commit that its pieces are changed for
  std::atomic<std::uint64_t> noted[kNotes];  // the commits that its notes are of
  std::uint64_t pieces;
};

// A head with pieces and notes for each worker, and behind them a copy of all regions.
std::size_t UndoLog::BlockSize(const Shape& shape) {
  std::size_t size = static_cast<std::size_t>(shape.world) *
                     (sizeof(Head) + PiecesSize(shape) + kNotes * RoundUp(shape.note));
  for (const std::uint64_t bytes : shape.regions) size += RoundUp(bytes);
  return size;
}

UndoLog::UndoLog(std::span<std::byte> block, Shape shape, std::vector<std::span<std::byte>> regions)
    : block_(block), shape_(std::move(shape)), regions_(std::move(regions)) {
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  if (block_.size() < BlockSize(shape_))
    throw Error(Code::kInvalidArgument, fmt::format("the block has {} bytes; {} are needed",
                                                    block_.size(), BlockSize(shape_)));
  if (regions_.size() != shape_.regions.size())
    throw Error(Code::kInvalidArgument,
                fmt::format("{} regions are given for {}", regions_.size(), shape_.regions.size()));
  std::size_t at = static_cast<std::size_t>(shape_.world) *
                   (sizeof(Head) + PiecesSize(shape_) + kNotes * RoundUp(shape_.note));
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    if (regions_[i].size() < shape_.regions[i])
      throw Error(Code::kInvalidArgument, fmt::format("region {} has {} bytes; {} are needed", i,
                                                      regions_[i].size(), shape_.regions[i]));
    copies_.push_back(at);
    at += RoundUp(shape_.regions[i]);
  }
}

UndoLog::Head& UndoLog::HeadOf(int rank) const {
  const std::size_t each = sizeof(Head) + PiecesSize(shape_) + kNotes * RoundUp(shape_.note);
  return *std::launder(
      reinterpret_cast<Head*>(block_.data() + static_cast<std::size_t>(rank) * each));
}

std::span<UndoLog::Piece> UndoLog::PiecesOf(int rank) const {
  auto* const first = reinterpret_cast<std::byte*>(&HeadOf(rank)) + sizeof(Head);
  return {std::launder(reinterpret_cast<Piece*>(first)), shape_.pieces};
}

std::byte* UndoLog::NoteAt(int rank, std::uint64_t number) const {
  return reinterpret_cast<std::byte*>(&HeadOf(rank)) + sizeof(Head) + PiecesSize(shape_) +
         number % kNotes * RoundUp(shape_.note);
}

std::span<std::byte> UndoLog::Copy(const Piece& piece) const {
  return block_.subspan(copies_[piece.region] + piece.offset, piece.bytes);
}

void UndoLog::Check(const Piece& piece) const {
  if (piece.region < regions_.size() && piece.offset <= shape_.regions[piece.region] &&
      piece.bytes <= shape_.regions[piece.region] - piece.offset)
    return;
  throw Error(Code::kInvalidArgument, fmt::format("{} bytes at {} are not in region {}",
                                                  piece.bytes, piece.offset, piece.region));
}

void UndoLog::Save(int rank, std::uint64_t number, std::span<const Piece> pieces) {
  if (pieces.size() > shape_.pieces)
    throw Error(Code::kInvalidArgument, fmt::format("{} pieces are saved; there is room for {}",
                                                    pieces.size(), shape_.pieces));
  for (const Piece& piece : pieces) Check(piece);
  Head& head = HeadOf(rank);
  // Of the step before, which is committed.
  head.saved.store(0, std::memory_order_release);
  Stamp();
  const std::span<Piece> kept = PiecesOf(rank);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    kept[i] = pieces[i];
    std::memcpy(Copy(pieces[i]).data(), regions_[pieces[i].region].data() + pieces[i].offset,
                pieces[i].bytes);
    Stamp();
  }
  head.pieces = pieces.size();
  Stamp();
  head.saved.store(number, std::memory_order_release);
}

void UndoLog::Note(int rank, std::uint64_t number,
                   std::span<const std::span<const std::byte>> parts) {
  std::size_t bytes = 0;
  for (const auto part : parts) bytes += part.size();
  if (bytes != shape_.note)
    throw Error(Code::kInvalidArgument,
                fmt::format("a note of {} bytes; it has {}", bytes, shape_.note));
  Head& head = HeadOf(rank);
  head.noted[number % kNotes].store(0, std::memory_order_release);
  Stamp();
  std::byte* to = NoteAt(rank, number);
  for (const auto part : parts) {
    if (part.empty()) continue;
    std::memcpy(to, part.data(), part.size());
    to += part.size();
    Stamp();
  }
  head.noted[number % kNotes].store(number, std::memory_order_release);
}

int UndoLog::PutBack(std::uint64_t number) {
  if (IsMutant("undo-put-back")) return 0;
  int begun = 0;
  for (int rank = 0; rank < shape_.world; ++rank) {
    Head& head = HeadOf(rank);
    if (head.saved.load(std::memory_order_acquire) != number + 1) continue;
    ++begun;
    for (const Piece& piece : PiecesOf(rank).first(head.pieces)) {
      Check(piece);
      std::memcpy(regions_[piece.region].data() + piece.offset, Copy(piece).data(), piece.bytes);
      Stamp();
    }
  }
  return begun;
}

std::span<const std::byte> UndoLog::NoteOf(int rank, std::uint64_t number) const {
  if (HeadOf(rank).noted[number % kNotes].load(std::memory_order_acquire) != number)
    throw Error(Code::kFailedPrecondition,
                fmt::format("rank {} left no note for commit {}", rank, number));
  return {NoteAt(rank, number), shape_.note};
}

}  // namespace orca::learn
