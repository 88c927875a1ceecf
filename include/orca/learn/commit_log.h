// How far a training is, in memory that outlives its workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "orca/core/export.h"

namespace orca::learn {

/// A moment in which all workers of a training had finished the same step, and none had begun to
/// change anything for the next.
struct Commit {
  std::uint64_t number = 0;   ///< From 1, of all commits of a training.
  std::uint64_t step = 0;     ///< Steps that were made.
  std::uint64_t epoch = 0;    ///< Epochs that were finished,
  std::uint64_t index = 0;    ///< and steps of the one that was not.
  std::uint64_t updates = 0;  ///< Of the weights, since the record was written.
  std::uint64_t skipped = 0;  ///< Steps of this epoch that were left out.
  double loss_sum = 0.0;      ///< Of this epoch: losses by their rows,
  std::uint64_t loss_rows = 0;
  double last_loss = 0.0;
  /// The block that has everything else (models, optimizers, schedulers), which changes seldom.
  std::uint64_t record = 0;
  std::uint64_t record_bytes = 0;
  /// 1: the step was finished by somebody else, and what follows a step (schedulers, callbacks)
  /// has not happened.
  std::uint64_t is_pending = 0;
};

/// The last commit. Whoever is killed while he writes leaves the one before.
///
/// One writer at a time; readers when nobody writes any more.
class ORCA_API CommitLog {
 public:
  static constexpr std::size_t kBlockSize = 1024;

  /// `block` is memory of kBlockSize bytes that the workers of a machine share, zeroed when a
  /// training begins. Throws kInvalidArgument when it is too small.
  explicit CommitLog(std::span<std::byte> block);

  /// Throws kInvalidArgument when its number does not follow the last one.
  void Write(const Commit& commit);
  /// Nothing before the first one.
  std::optional<Commit> Read() const;

 private:
  struct Place;

  Place& At(std::uint64_t number) const;

  std::span<std::byte> block_;
};

}  // namespace orca::learn
