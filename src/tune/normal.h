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
/// The x with P(Z < x | a < Z < b) = q, for a <= 0 <= b.
double TruncatedQuantile(double q, double a, double b);

}  // namespace orca::tune
