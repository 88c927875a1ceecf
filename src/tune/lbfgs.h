// Minimisation in a box.
#pragma once

#include <functional>
#include <span>
#include <vector>

namespace orca::tune {

struct LbfgsOptions {
  int iterations = 200;
  double tolerance = 1e-2;  ///< Of the projected gradient's largest element.
};

/// Moves `x` to a minimum of `function` within [low, high], by limited-memory BFGS steps along the
/// edges of the box, and returns the value there. `function` writes the gradient at its first
/// argument into its second.
double Minimize(const std::function<double(std::span<const double>, std::span<double>)>& function,
                std::vector<double>& x, std::span<const double> low, std::span<const double> high,
                const LbfgsOptions& options);

}  // namespace orca::tune
