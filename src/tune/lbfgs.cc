#include "tune/lbfgs.h"

#include <algorithm>
#include <cmath>
#include <deque>

namespace orca::tune {
namespace {

constexpr std::size_t kMemory = 8;
constexpr int kBacktracks = 20;
constexpr double kArmijo = 1e-4;

using Vector = std::vector<double>;

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

struct Pair {
  Vector step, change;  // Of the place and of the gradient.
  double inverse;       // 1 / their product
};

// The two loops of L-BFGS: about the inverse Hessian times `gradient`.
Vector Direction(const std::deque<Pair>& memory, Vector q) {
  Vector factors(memory.size());
  for (std::size_t k = memory.size(); k-- > 0;) {
    factors[k] = memory[k].inverse * Dot(memory[k].step, q);
    for (std::size_t i = 0; i < q.size(); ++i) q[i] -= factors[k] * memory[k].change[i];
  }
  if (!memory.empty()) {
    const Pair& last = memory.back();
    const double scale = 1 / (last.inverse * Dot(last.change, last.change));
    for (double& value : q) value *= scale;
  }
  for (std::size_t k = 0; k < memory.size(); ++k) {
    const double factor = memory[k].inverse * Dot(memory[k].change, q);
    for (std::size_t i = 0; i < q.size(); ++i) q[i] += (factors[k] - factor) * memory[k].step[i];
  }
  return q;
}

}  // namespace

double Minimize(const std::function<double(std::span<const double>, std::span<double>)>& function,
                std::vector<double>& x, std::span<const double> low, std::span<const double> high,
                const LbfgsOptions& options) {
  const std::size_t n = x.size();
  Vector gradient(n);
  Vector next(n);
  Vector next_gradient(n);
  std::deque<Pair> memory;
  double value = function(x, gradient);
  for (int iteration = 0; iteration < options.iterations; ++iteration) {
    // At an edge only what leads away from it counts.
    Vector free = gradient;
    double largest = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if ((x[i] <= low[i] && gradient[i] > 0) || (x[i] >= high[i] && gradient[i] < 0)) free[i] = 0;
      largest = std::max(largest, std::abs(free[i]));
    }
    if (!std::isfinite(value) || largest < options.tolerance) break;

    Vector direction = Direction(memory, free);
    for (std::size_t i = 0; i < n; ++i) direction[i] = free[i] == 0 ? 0 : -direction[i];
    if (!(Dot(direction, free) < 0)) {
      memory.clear();
      for (std::size_t i = 0; i < n; ++i) direction[i] = -free[i];
    }
    double length = memory.empty() ? std::min(1.0, 1 / std::sqrt(Dot(free, free))) : 1;
    bool improved = false;
    double next_value = value;
    for (int attempt = 0; attempt < kBacktracks; ++attempt, length /= 2) {
      double slope = 0;
      for (std::size_t i = 0; i < n; ++i) {
        next[i] = std::clamp(x[i] + length * direction[i], low[i], high[i]);
        slope += gradient[i] * (next[i] - x[i]);
      }
      next_value = function(next, next_gradient);
      if (next_value <= value + kArmijo * slope && slope < 0) {
        improved = true;
        break;
      }
    }
    if (!improved) {
      if (memory.empty()) break;
      memory.clear();  // Once more, downhill.
      continue;
    }
    Pair pair = {Vector(n), Vector(n), 0};
    for (std::size_t i = 0; i < n; ++i) {
      pair.step[i] = next[i] - x[i];
      pair.change[i] = next_gradient[i] - gradient[i];
    }
    const double product = Dot(pair.step, pair.change);
    if (product > 1e-12 * Dot(pair.change, pair.change)) {
      pair.inverse = 1 / product;
      memory.push_back(std::move(pair));
      if (memory.size() > kMemory) memory.pop_front();
    }
    const double gained = value - next_value;
    x = next;
    gradient = next_gradient;
    value = next_value;
    if (gained < 1e-9 * (1 + std::abs(value))) break;
  }
  return value;
}

}  // namespace orca::tune
