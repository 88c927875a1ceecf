// The loops over many numbers of the samplers, one set for each instruction set; all give the same
// bits.
#pragma once

#include <cstddef>
#include <span>

namespace orca::tune {

inline constexpr std::size_t kLanes = 8;

/// Gaussian kernels of several dimensions, in tiles of kLanes.
struct Kernels {
  /// Of each tile, of each dimension: kLanes places, then kLanes times 1 / (sqrt(2) * sigma).
  const double* tiles;
  const double* weights;  ///< Up to 1.
  std::size_t count;      ///< A multiple of kLanes.
  std::size_t dims;
};

/// Where densities are wanted.
struct Queries {
  const double* x;  ///< Dimension d of query c is at [c * stride + d].
  std::size_t stride;
  std::size_t count;
  /// Of query c and kernel k, at [c * start_stride + k]: logarithm of all that does not depend on
  /// x.
  const double* start;
  std::size_t start_stride;  ///< 0: the same for all queries.
};

inline constexpr std::size_t kBlock = 16;  ///< So many points meet a Gaussian process at once.

/// A Matern 5/2 kernel, s * (1 + r + r^2 / 3) exp(-r), r^2 = 5 * sum of weights[j] * distance_j^2.
struct MaternKernel {
  const double* weights;
  const double* is_category;  ///< 1: two values are 0 or 1 apart, whatever they are; else 0.
  std::size_t dims;
  double scale;
};

struct Loops {
  const char* isa;
  /// out[c] = log of the sum over k of weights[k] * exp(start - sum over d of (x - mu)^2 / (2 *
  /// sigma^2)). Kernels too far away to change a bit of it cost little. `terms` has place for as
  /// many numbers as there are pairs of query and kernel; it may be `start`.
  void (*log_densities)(const Kernels& kernels, const Queries& queries, double* terms, double* out);
  double (*dot)(const double* a, const double* b, std::size_t count);
  /// out[p] = kernel of x and point p of a block; its dimension d is at [d * kBlock + p].
  void (*matern)(const MaternKernel& kernel, const double* x, const double* block, double* out);
  /// Adds to sums[p] the square of each row of a lower triangular matrix times column p of a block
  /// (which is at [k * kBlock + p]). The matrix has zeros above its diagonal.
  void (*add_squares)(const double* rows, std::size_t size, const double* block, double* sums);
};

namespace baseline {
extern const Loops kLoops;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Loops kLoops;
}
namespace avx512 {
extern const Loops kLoops;
}
#endif

/// The sets that this processor can run, the slowest first.
std::span<const Loops* const> RunnableLoops();
/// The last of them.
const Loops& FastestLoops();

}  // namespace orca::tune
