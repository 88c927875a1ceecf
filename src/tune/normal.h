// The normal distribution, accurate in its tails.
#pragma once

namespace orca::tune {

/// P(Z < x).
double Ndtr(double x);
/// log P(Z < x), also where P itself is too small for a double.
double LogNdtr(double x);
/// The x with P(Z < x) = p; p in (0, 1).
double Ndtri(double p);
/// log P(a < Z < b); a < b.
double LogGaussMass(double a, double b);

/// A normal distribution cut off below a and above b, a <= 0 <= b.
struct Truncation {
  Truncation(double low, double high);

  /// The x with P(Z < x | a < Z < b) = q.
  double Quantile(double q) const;
  /// log P(a < Z < b).
  double LogMass() const;

  double a;
  double b;
  double below;  ///< P(Z < a)
  double above;  ///< P(Z > b)
};

}  // namespace orca::tune
