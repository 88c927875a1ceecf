// Who dies again and again in the same place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "orca/core/export.h"

namespace orca::learn {

/// Where each worker of a call is, in memory that outlives them: a step, or a batch. When a call
/// begins anew, the worker whose death was the cause is found there; one that dies in the same
/// place for the third time in a row would do so for ever. Twice may be chance: whoever ends
/// processes from outside can meet a long step twice.
///
/// Not thread-safe: one thread of each process.
class ORCA_API Places {
 public:
  struct Death {
    int rank = 0;
    std::uint64_t place = 0;
    int times = 1;  ///< How many deaths in a row were of this rank in this place.

    /// Whether another process would die there, too.
    bool IsCertain() const { return times >= 3; }
  };

  static std::size_t BlockSize(int world);

  /// `block` is memory of BlockSize bytes that all workers map, zeroed when the call is made.
  /// Throws kInvalidArgument when it is too small.
  Places(std::span<std::byte> block, int world);

  /// Before `rank` begins what is in place `number`, from 1.
  void Enter(int rank, std::uint64_t number);
  /// When a call has begun anew: the one worker that is no more, and where it was. `are_new` says
  /// which ranks are other processes than before. Nothing when there are several, or nobody knows.
  std::optional<Death> Find(const std::vector<bool>& are_new) const;
  /// When all workers have found it, by one of them: what to compare the next death with.
  void Settle(const std::optional<Death>& death);

 private:
  struct Marks;

  Marks& marks() const;
  std::span<std::uint64_t> places() const;

  std::span<std::byte> block_;
  int world_;
};

}  // namespace orca::learn
