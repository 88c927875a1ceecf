// Tree-structured Parzen estimators (Bergstra et al., 2011) in the form of Optuna 5.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "orca/tune/sampler.h"

namespace orca::tune {

struct TpeOptions {
  std::uint64_t seed = 0;
  std::int64_t startup = 10;     ///< Random trials before the model.
  std::int64_t candidates = 24;  ///< Drawn from l; the one with the largest l / g is taken.
  bool multivariate = true;      ///< One mixture over all parameters that exist together.
  /// The best trials form l: ceil(gamma * n), or ceil(gamma * sqrt(n)); at most 25.
  double gamma = 0.1;
  bool gamma_of_root = false;
  double prior_weight = 1;
};

/// Splits the trials into the best and the rest, estimates a density of each, l and g, and proposes
/// where l / g is large. Trials that run count to the rest, so that none is proposed twice.
class TpeSampler final : public Sampler {
 public:
  TpeSampler(const Space& space, const TpeOptions& options);
  ~TpeSampler() override;

  Point Ask(std::int64_t number) override;
  void Tell(const Observation& trial) override;

  /// log l - log g at `points`, of the parameters without a parent.
  std::vector<double> LogRatios(std::span<const Point> points);

 private:
  struct Trial;
  struct Part;

  void MarkBest();

  const Space space_;
  const TpeOptions options_;
  std::vector<Part> parts_;
  std::vector<Trial> trials_;          // In the order of their numbers.
  std::vector<std::uint32_t> ranked_;  // Those that completed or were pruned, the best first.
  std::vector<std::uint8_t> is_best_;
};

}  // namespace orca::tune
