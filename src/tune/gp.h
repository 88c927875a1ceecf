// Bayesian optimisation with a Gaussian process.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "orca/tune/sampler.h"
#include "tune/matrix.h"

namespace orca::tune {

/// A Gaussian process with a Matern 5/2 kernel that has a length for each dimension, conditioned on
/// observations. Coordinates are in [0, 1]; two categories are 1 apart. Its mean is a constant, the
/// likeliest one: many observations at one place count little more than one of them, so a search
/// that has dwelt in a good place does not believe that unknown places are as good.
class GaussianProcess {
 public:
  /// Kernel s * (1 + r + r^2 / 3) exp(-r), r^2 = 5 * sum of weights[j] * distance_j^2.
  struct Parameters {
    std::vector<double> weights;
    double scale = 1;
    double noise = 1e-6;
  };

  /// `x` has a row of `is_category.size()` numbers for each of `y`.
  GaussianProcess(std::vector<double> x, std::vector<double> y, std::vector<bool> is_category);

  /// The negative logarithm of likelihood and priors at logarithms of weights, scale and noise
  /// (less its minimum), and its gradient. Infinity where the matrix is not positive definite.
  double Loss(std::span<const double> logarithms, std::span<double> gradient) const;
  /// The parameters that minimise Loss.
  Parameters Fit() const;
  /// Takes these parameters for what follows; false: the matrix is not positive definite.
  bool Condition(const Parameters& parameters);

  struct Prediction {
    double mean;
    double deviation;
  };
  /// With gradients by the coordinates, unless they are empty.
  Prediction Predict(std::span<const double> x, std::span<double> mean_gradient,
                     std::span<double> deviation_gradient) const;
  /// Means and deviations of many points, one a row.
  void PredictMany(std::span<const double> x, std::vector<Prediction>& out) const;

  std::size_t dims() const { return is_category_.size(); }
  std::size_t size() const { return y_.size(); }

 private:
  double Distance(const double* a, const double* b, const std::vector<double>& weights) const;

  std::vector<double> x_;
  std::vector<double> y_;
  std::vector<bool> is_category_;
  Parameters parameters_;
  double mean_ = 0;
  Matrix inverse_rows_;  // Of the inverse of the lower factor, ...
  Matrix inverse_columns_;
  std::vector<double> alpha_;
};

struct GpOptions {
  std::uint64_t seed = 0;
  std::int64_t startup = 10;
  double kappa = 0;  ///< 0: log of the expected improvement; else mean - kappa * deviation.
};

/// Proposes where the expected improvement over the best is largest; the first trial is the middle
/// of the space, the other ones of the start are Sobol points. Once little is expected there, every
/// second trial is of a search that knows nothing of the best place and its surroundings, and stays
/// out of them. Pending trials count as if they had ended with their expected value; failed ones as
/// if they had the worst.
class GpSampler final : public Sampler {
 public:
  GpSampler(const Space& space, const GpOptions& options);
  ~GpSampler() override;

  Point Ask(std::int64_t number) override;
  void Tell(const Observation& trial) override;

 private:
  struct Search;
  // What is known: coordinates, one trial a row, and losses of those that have ended.
  struct Known {
    std::vector<double> x;
    std::vector<double> y;
    std::vector<double> pending;  // Coordinates.
  };
  // The last fit, and what it was of.
  struct Fitted {
    std::vector<double> x;
    std::vector<double> y;
    GaussianProcess::Parameters parameters;
  };
  struct Model {
    std::unique_ptr<GaussianProcess> process;  // Null: there is none of these observations.
    std::vector<double> incumbent;             // The best place,
    double least;                              // and what is expected of it or of a pending one.
  };

  std::vector<double> Coordinates(const Point& point) const;
  Point Decode(const std::vector<double>& x) const;
  Known Everything() const;
  Known Outside(const Known& known, const std::vector<double>& centre) const;
  GaussianProcess::Parameters FittedParameters(const Known& known, Fitted& last) const;
  Model Learn(Known known, Fitted& last) const;

  const Space space_;
  const GpOptions options_;
  std::unique_ptr<Sampler> startup_;
  std::vector<bool> is_category_;
  std::vector<Observation> trials_;  // By number.
  Fitted everywhere_;
  Fitted elsewhere_;  // Out of the surroundings of the best place.
};

/// Makes losses have mean 0, deviation 1 and about the shape of a normal law: Yeo and Johnson's
/// power, the likeliest in [-1, 3]. Their order stays.
void MakeNormal(std::vector<double>& losses);

/// log of the expectation of max(0, z + Z), Z normal; and its derivative.
double LogImprovement(double z, double& derivative);

}  // namespace orca::tune
