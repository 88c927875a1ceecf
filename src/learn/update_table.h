// The update kernels of one instruction set. Internal to update*.cc and their test.
#pragma once

#include <cstddef>
#include <span>

#include "orca/learn/update.h"

namespace orca::learn {

/// One call of a kernel, with what all elements have in common worked out. Plain pointers: files
/// compiled for a higher instruction set must not instantiate inline code of shared headers, since
/// the linker might keep that copy for everybody.
struct UpdateCall {
  const void* const* gradients;
  const double* factors;
  std::size_t sources;  ///< At least 1.
  const void* from[4];  ///< Weights, then states.
  void* to[4];
  std::size_t written;  ///< How many of these there are.
  std::size_t count;
  bool streams;  ///< Whether results go past the caches; they begin at cache lines then.

  // The gradient.
  bool clips, scales, negates;
  double clip_low, clip_high, scale;
  double decay;  ///< How much of the weights is added to it; 0: nothing.
  // SGD.
  bool has_momentum, nesterov, first;
  double lr, momentum, undamped;
  // Adam.
  bool amsgrad;
  double shrink;             ///< What the weights are multiplied by; 1: nothing.
  double beta1, beta2, eps;  ///< And how far this step is:
  double step_size, root_correction;
};

struct UpdateTable {
  using Kernel = void (*)(const UpdateCall& call);

  const char* isa;
  Kernel sgd32, adam32;  ///< float32
  Kernel sgd64, adam64;
};

namespace baseline {
extern const UpdateTable kUpdates;
}
#if defined(__x86_64__)
namespace avx2 {
extern const UpdateTable kUpdates;
}
namespace avx512 {
extern const UpdateTable kUpdates;
}
#endif

/// The tables that this processor can run and ORCA_ISA allows, the slowest first.
std::span<const UpdateTable* const> RunnableUpdates();

/// Update() with the kernels of `table`.
void UpdateWith(const UpdateTable& table, const UpdateRule& rule, DType dtype,
                std::span<const void* const> gradients, std::span<const double> factors,
                const UpdateSpan& from, const UpdateSpan& to, std::size_t count);

}  // namespace orca::learn
