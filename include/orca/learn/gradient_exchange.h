// How workers make one gradient of theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "orca/comm/communicator.h"
#include "orca/core/export.h"
#include "orca/learn/flat_layout.h"
#include "orca/learn/redo_log.h"

namespace orca::learn {

/// What a worker says when it has its gradient.
struct StepPart {
  double weight = 0.0;     ///< Its share of the mean: rows, or a loss's own denominator. 0: none.
  double loss = 0.0;       ///< The mean (or sum) over its share.
  std::uint64_t rows = 0;  ///< That it has trained on.
  bool leaves = false;     ///< It has no gradient and ends its step; see Follow.
};

/// What all of them together said.
struct StepSum {
  double weight = 0.0;
  double loss = 0.0;
  std::uint64_t rows = 0;
  int bad_loss = -1;      ///< The first rank with a loss that is not finite.
  int bad_gradient = -1;  ///< The first rank whose gradient has a value that is not finite,
  int bad_tensor = -1;    ///< and the first such tensor there.
  bool all_leave = true;
  std::vector<bool> used;  ///< One a tensor: whether some rank with a weight has a gradient of it.
};

enum class LossKind : std::uint8_t {
  kMean,  ///< The gradient is the weighted mean of the workers'.
  kSum,   ///< Their sum.
};

/// Joins the gradients of the workers of a group, as if one process had seen all their rows.
///
/// A step of every worker is: Collect, Meet, then either ReduceShare (each worker has its share of
/// the sum) or ReduceAll and Spread (each has all of it), and Leave. On one machine the workers
/// read each other's gradients where they are; between machines they travel once. Not thread-safe:
/// one thread drives it.
class ORCA_API GradientExchange {
 public:
  /// The bytes of the block that the workers of one machine share.
  static std::size_t BlockSize(const FlatLayout& layout, int world);

  /// `block` is zeroed memory that all workers map, or, `shared` being false, this worker's own.
  /// It must live as long as the exchange.
  GradientExchange(std::shared_ptr<comm::Communicator> group, FlatLayout layout,
                   std::span<std::byte> block, bool shared);

  /// Copies the gradient of every tensor, or nothing where the pointer is null, into this worker's
  /// bank; notes which are not finite.
  void Collect(std::span<const void* const> gradients);
  /// Waits for all workers; everybody gets the same sum.
  StepSum Meet(const StepPart& mine, LossKind kind = LossKind::kMean);
  /// Reduces this worker's share (see FlatLayout::Share) of each run, in its own bank.
  void ReduceShare(std::span<const FlatLayout::Run> runs);
  /// After Meet: where the gradients of all workers are, and what they weigh. Only on one machine.
  JoinedGradient Joined() const;
  /// After Meet: the sum of the squares of this worker's share of each run of the joined gradient,
  /// each element held between the limits if there are any.
  double SquaresOfShare(std::span<const FlatLayout::Run> runs,
                        std::optional<std::pair<double, double>> limits);
  /// The same as Joined, of a block whose workers are gone.
  static JoinedGradient JoinedIn(const FlatLayout& layout, std::span<const std::byte> block,
                                 int world, LossKind kind);
  /// Reduces everything.
  void ReduceAll();
  /// After ReduceAll: copies the joined gradients to where the pointers say, null ones excepted.
  void Spread(std::span<void* const> gradients) const;
  /// Waits for all workers: after it, everybody's bank may be written, and what was written to
  /// shared weights before is there for all.
  void Leave();

  /// This worker's bank: layout().size() bytes.
  std::span<std::byte> bank() const { return Bank(group_->rank()); }
  const FlatLayout& layout() const { return layout_; }

 private:
  struct Slot;

  std::span<std::byte> Bank(int rank) const;
  Slot& SlotOf(int rank) const;
  std::span<std::byte> UsedOf(int rank) const;
  StepSum Sum(LossKind kind);
  void ReduceRange(DType dtype, const FlatLayout::Range& range);

  std::shared_ptr<comm::Communicator> group_;
  FlatLayout layout_;
  std::span<std::byte> block_;
  bool shared_;
  std::vector<std::byte> mine_;  // this worker's slot and flags, when nothing is shared
  std::vector<double> factors_;  // of the workers that have a weight
  std::vector<int> sources_;     // those workers
  double own_factor_ = 0.0;
  std::vector<FlatLayout::Run> whole_;  // one run a type
};

}  // namespace orca::learn
