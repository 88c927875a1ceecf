// The steps of the common optimizers, in one pass over the memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "orca/core/dtype.h"
#include "orca/core/export.h"

namespace orca::learn {

enum class UpdateKind : std::uint8_t {
  kSgd,
  kAdam,   ///< Weight decay is added to the gradient.
  kAdamW,  ///< Weight decay shrinks the weights.
};

/// One step of one group: the options of torch.optim that change the arithmetic. Plain data, so
/// that it may be kept in shared memory.
struct UpdateRule {
  UpdateKind kind = UpdateKind::kSgd;
  bool nesterov = false;  ///< SGD's.
  bool amsgrad = false;   ///< Adam's.
  bool maximize = false;
  bool first = false;  ///< SGD's momentum buffer begins as the gradient itself.
  bool clips = false;  ///< Whether clip_low and clip_high mean anything.
  double lr = 0;
  double weight_decay = 0;
  double momentum = 0;  ///< SGD's, as is the next.
  double dampening = 0;
  double beta1 = 0.9;  ///< Adam's, as are the next three.
  double beta2 = 0.999;
  double eps = 1e-8;
  double step = 1;  ///< The number of this step: a whole number from 1.
  // What happens to the joined gradient before all else, in this order.
  double clip_low = 0;  ///< The least and the largest value of an element.
  double clip_high = 0;
  double scale = 1;  ///< A factor, as clipping by the norm gives one.
};
static_assert(std::is_trivially_copyable_v<UpdateRule> && std::is_standard_layout_v<UpdateRule>);

/// The same elements of the weights and of the optimizer's states. Pointers that the rule does not
/// need are not looked at.
struct UpdateSpan {
  void* weights = nullptr;
  /// SGD: momentum_buffer, if momentum is not 0. Adam: exp_avg, exp_avg_sq, and max_exp_avg_sq if
  /// amsgrad.
  std::array<void*, 3> states = {};
};

/// Whether Update knows the kind and the type: all kinds, of float32 and float64.
ORCA_API bool Supports(UpdateKind kind, DType dtype);
/// How many of UpdateSpan's states the rule uses.
ORCA_API std::size_t StateCount(const UpdateRule& rule);

/// Makes one step of an optimizer for `count` elements: `to` = step(`from`, gradient).
///
/// The gradient is the sum of factors[i] * gradients[i], in this order, with the bits that
/// comm::Reduce gives for kPreMulSum; it is clipped, scaled, and then used as torch.optim does.
/// Gradients, weights and states are all of type `dtype`, and aligned for it. What `to` holds is
/// never read; a pointer of `to` may be the same as one of `from` or of the gradients, but ranges
/// must not overlap otherwise. With `first`, states of `from` are not read.
///
/// An element's result depends on nothing but its own values: not on how a range is cut, and not on
/// the instruction set (no product is fused with a sum), so that a run may move between machines.
/// Only the payload of a NaN may differ. Any thread.
///
/// Throws kInvalidArgument when the type is not supported, there is no gradient, the factors are
/// not one a gradient, a pointer is missing, or `step` is not a whole number from 1.
ORCA_API void Update(const UpdateRule& rule, DType dtype, std::span<const void* const> gradients,
                     std::span<const double> factors, const UpdateSpan& from, const UpdateSpan& to,
                     std::size_t count);

}  // namespace orca::learn
