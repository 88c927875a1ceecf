// What a step overwrites, kept until the step is committed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "orca/core/export.h"

namespace orca::learn {

/// Copies of what each worker changes in memory that all of them share, and notes of what only it
/// knows, for the commit that comes next (see CommitLog). A worker that dies leaves its share of a
/// step half done; with the copies all shares become again what they were when the last step was
/// committed, and the step is made anew.
///
/// A step of every worker is: Save, change the shared memory, Note, wait for all; then somebody
/// writes the commit. Not thread-safe: one thread of each process.
class ORCA_API UndoLog {
 public:
  /// A part of one of the shared regions.
  struct Piece {
    std::uint64_t region = 0;
    std::uint64_t offset = 0;  ///< In bytes.
    std::uint64_t bytes = 0;
  };
  struct Shape {
    int world = 1;
    std::uint64_t pieces = 0;            ///< The most that one worker saves.
    std::uint64_t note = 0;              ///< The bytes of one worker's note.
    std::vector<std::uint64_t> regions;  ///< The bytes of each.
  };

  static std::size_t BlockSize(const Shape& shape);

  /// `block` is zeroed memory that all workers map, of BlockSize bytes; `regions` is what the
  /// workers change. Throws kInvalidArgument when sizes do not fit.
  UndoLog(std::span<std::byte> block, Shape shape, std::vector<std::span<std::byte>> regions);

  /// Before `rank` changes these pieces for commit `number`.
  void Save(int rank, std::uint64_t number, std::span<const Piece> pieces);
  /// What `rank` alone knows when commit `number` is made; the parts add up to the note's bytes.
  void Note(int rank, std::uint64_t number, std::span<const std::span<const std::byte>> parts);

  /// After a death: makes everything what it was when commit `number` was made. Says how many
  /// workers had begun to change something. May be done again when it was interrupted.
  int PutBack(std::uint64_t number);
  /// What a worker noted for a commit. Throws kFailedPrecondition when it did not.
  std::span<const std::byte> NoteOf(int rank, std::uint64_t number) const;

 private:
  struct Head;

  Head& HeadOf(int rank) const;
  std::span<Piece> PiecesOf(int rank) const;
  std::byte* NoteAt(int rank, std::uint64_t number) const;
  std::span<std::byte> Copy(const Piece& piece) const;
  void Check(const Piece& piece) const;

  std::span<std::byte> block_;
  Shape shape_;
  std::vector<std::span<std::byte>> regions_;
  std::vector<std::size_t> copies_;  // where the copy of each region begins
};

}  // namespace orca::learn
