// Steps that somebody else can finish.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "orca/core/dtype.h"
#include "orca/core/export.h"
#include "orca/learn/flat_layout.h"
#include "orca/learn/update.h"

namespace orca::learn {

/// The gradients of the workers that have one, and the weight of each; see GradientExchange.
struct JoinedGradient {
  std::vector<const std::byte*> banks;  ///< As the layout says.
  std::vector<double> factors;
};

/// A run of parameters that are updated alike, and where their states are.
struct UpdatePart {
  FlatLayout::Run run;
  UpdateRule rule;
  /// Each state's region; it begins where `area` says in the layout.
  std::array<std::uint64_t, 3> regions = {};
  std::uint64_t area = 0;
};

/// The update of weights that all workers share, each its share of them, straight from everybody's
/// gradients. A little at a time goes to a staging area, is stamped, copied and stamped again. When
/// a worker dies in between, anybody can finish the step: the gradients are still there.
///
/// Not thread-safe: one thread of each process.
class ORCA_API RedoLog {
 public:
  struct Shape {
    int world = 1;
    std::uint64_t parts = 0;  ///< The most that a step has.
  };
  /// What the workers together said of a step; see StepSum.
  struct Step {
    double loss = 0.0;
    std::uint64_t rows = 0;
  };

  static std::size_t BlockSize(const Shape& shape);

  /// `block` is zeroed memory that all workers map, of BlockSize bytes; region 0 has the weights.
  /// Throws kInvalidArgument when the block is too small.
  RedoLog(std::span<std::byte> block, Shape shape, std::vector<std::span<std::byte>> regions);

  /// Makes the share of `rank` of the step that becomes commit `number`. All workers give the same
  /// parts. Throws kInvalidArgument for a part that is not in its regions.
  void Update(int rank, std::uint64_t number, const Step& step, std::span<const UpdatePart> parts,
              const JoinedGradient& gradient);

  /// After a death: finishes the step that was to become commit `number`, if anybody had begun to
  /// change something for it. May be done again when it was interrupted.
  std::optional<Step> Finish(std::uint64_t number, const JoinedGradient& gradient);

 private:
  struct Head;

  Head& HeadOf(int rank) const;
  std::span<UpdatePart> PartsOf(int rank) const;
  std::byte* StagingOf(int rank) const;
  void Begin(int rank, std::uint64_t number, const Step& step, std::span<const UpdatePart> parts);
  void Run(int rank, const JoinedGradient& gradient);
  void Check(const UpdatePart& part) const;

  std::span<std::byte> block_;
  Shape shape_;
  std::vector<std::span<std::byte>> regions_;
};

}  // namespace orca::learn
