// The loops of TPE over all kernels of a mixture, one set for each instruction set; all give the
// same bits.
#pragma once

#include <cstddef>
#include <span>

namespace orca::tune {

/// Gaussian kernels of several dimensions; dimension d of kernel k is at [d * stride + k]. `stride`
/// is a multiple of kLanes.
struct Kernels {
  const double* base;  ///< Logarithm of the weight and of all that does not depend on x.
  const double* mu;
  const double* inverse_sigma;
  std::size_t stride;
  std::size_t dims;
};

inline constexpr std::size_t kLanes = 8;

struct TpeTable {
  const char* isa;
  /// out[c * stride + k] = base[k] - 1/2 * sum over d of ((x[c * dims + d] - mu) / sigma)^2.
  void (*evaluate)(const Kernels& kernels, const double* x, std::size_t candidates, double* out);
  /// log of the sum of exp(values); `count` is a multiple of kLanes.
  double (*log_sum_exp)(const double* values, std::size_t count);
};

namespace baseline {
extern const TpeTable kTpe;
}
#if defined(__x86_64__)
namespace avx2 {
extern const TpeTable kTpe;
}
namespace avx512 {
extern const TpeTable kTpe;
}
#endif

/// The tables that this processor can run, the slowest first.
std::span<const TpeTable* const> RunnableTpe();

}  // namespace orca::tune
