#include "tune/normal.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

namespace orca::tune {
namespace {

template <std::size_t n>
double Polynomial(const std::array<double, n>& coefficients, double x) {
  double sum = 0;
  for (const double coefficient : coefficients) sum = sum * x + coefficient;
  return sum;
}

// Acklam's rational approximation for p <= 0.5: nine digits, before the step of Ndtri.
double RoughNdtri(double p) {
  constexpr std::array kTop = {-3.969683028665376e+01, 2.209460984245205e+02,
                               -2.759285104469687e+02, 1.383577518672690e+02,
                               -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr std::array kBottom = {-5.447609879822406e+01, 1.615858368580409e+02,
                                  -1.556989798598866e+02, 6.680131188771972e+01,
                                  -1.328068155288572e+01, 1.0};
  constexpr std::array kTailTop = {-7.784894002430293e-03, -3.223964580411365e-01,
                                   -2.400758277161838e+00, -2.549732539343734e+00,
                                   4.374664141464968e+00,  2.938163982698783e+00};
  constexpr std::array kTailBottom = {7.784695709041462e-03, 3.224671290700398e-01,
                                      2.445134137142996e+00, 3.754408661907416e+00, 1.0};
  if (p < 0.02425) {
    const double r = std::sqrt(-2 * std::log(p));
    return Polynomial(kTailTop, r) / Polynomial(kTailBottom, r);
  }
  const double r = p - 0.5;
  return r * Polynomial(kTop, r * r) / Polynomial(kBottom, r * r);
}

}  // namespace

double Ndtr(double x) { return 0.5 * std::erfc(-x * (1 / std::numbers::sqrt2)); }

double LogNdtr(double x) {
  if (x > 6) return -Ndtr(-x);
  if (x > -20) return std::log(Ndtr(x));
  // The asymptotic series; at -20 its terms reach 1e-16 before they grow.
  const double inverse = 1 / (x * x);
  double sum = 1;
  double term = 1;
  for (int i = 1; i < 20; ++i) {
    term *= -(2 * i - 1) * inverse;
    sum += term;
    if (std::abs(term) < 1e-17) break;
  }
  return -0.5 * x * x - std::log(-x) - 0.5 * std::log(2 * std::numbers::pi) + std::log(sum);
}

double Ndtri(double p) {
  if (p > 0.5) return -Ndtri(1 - p);
  if (p <= 0) return -std::numeric_limits<double>::infinity();
  const double x = RoughNdtri(p);
  if (p < 1e-300) return x;  // exp(x * x / 2) would overflow.
  // One step of Halley's method brings all digits.
  const double error = (Ndtr(x) - p) * std::sqrt(2 * std::numbers::pi) * std::exp(x * x / 2);
  return x - error / (1 + x * error / 2);
}

double LogGaussMass(double a, double b) {
  if (a > 0) return LogGaussMass(-b, -a);
  if (b > 0) return std::log1p(-Ndtr(a) - Ndtr(-b));
  const double right = LogNdtr(b);
  return right + std::log1p(-std::exp(LogNdtr(a) - right));
}

// What is 1e-19 or less is lost beside the mass between, and most tails are.
Truncation::Truncation(double low, double high)
    : a(low), b(high), below(low < -9 ? 0 : Ndtr(low)), above(high > 9 ? 0 : Ndtr(-high)) {}

double Truncation::Quantile(double q) const {
  const double mass = 1 - below - above;
  const double p = below + q * mass;
  const double x = p <= 0.5 ? Ndtri(p) : -Ndtri(above + (1 - q) * mass);
  return std::clamp(x, a, b);
}

double Truncation::LogMass() const { return std::log1p(-below - above); }

}  // namespace orca::tune
