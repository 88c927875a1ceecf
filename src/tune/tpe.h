// Tree-structured Parzen estimators (Bergstra et al., 2011) in the form of Optuna 5.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "orca/tune/sampler.h"
#include "tune/tpe_kernels.h"

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
  struct Dimension;
  struct Part;
  struct Mixture;

  void MarkBest();
  void Build(Part& part, bool best, Mixture& mixture);
  void BuildNumbers(Part& part, std::size_t dimension, Mixture& mixture);
  void DrawCandidates(const Part& part, const Mixture& mixture, std::int64_t number);
  void Score(const Part& part, const Mixture& mixture, std::size_t candidates,
             std::vector<double>& scores);
  void AddSteps(const Part& part, std::size_t dimension, const Mixture& mixture,
                std::size_t candidates);
  void AddCategories(const Part& part, std::size_t dimension, const Mixture& mixture,
                     std::size_t candidates);

  const Space space_;
  const TpeOptions options_;
  const TpeTable& table_;
  std::vector<Part> parts_;
  std::vector<Trial> trials_;          // In the order of their numbers.
  std::vector<std::uint32_t> ranked_;  // Those that completed or were pruned, the best first.
  std::vector<bool> is_best_;

  // Scratch of one Ask, kept for its memory.
  std::unique_ptr<Mixture> best_;
  std::unique_ptr<Mixture> rest_;
  std::vector<std::uint32_t> place_;
  std::vector<double> candidates_;  // [candidate][dimension], as the model sees them
  std::vector<double> numbers_;     // Of the dimensions that the table's loops take.
  std::vector<double> terms_;       // [candidate][kernel]
  std::vector<double> best_scores_;
  std::vector<double> rest_scores_;
};

}  // namespace orca::tune
