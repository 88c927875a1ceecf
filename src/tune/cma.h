// Evolution by covariance matrix adaptation (Hansen), with margins for stepped parameters.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "orca/tune/sampler.h"
#include "tune/matrix.h"

namespace orca::tune {

struct CmaOptions {
  std::uint64_t seed = 0;
  std::int64_t population = 0;  ///< 0: 4 + 3 ln d.
  double sigma = 1.0 / 6;       ///< The first step, of the unit cube.
};

/// Draws generations of trials from a normal distribution that follows the better half of each.
/// Categories and parameters with a parent are left to TPE.
///
/// Trials 0 .. lambda - 1 are the first generation, and so on, in the order of their numbers. A
/// generation changes the distribution when all of its trials have ended; a trial that is asked for
/// before is drawn from the distribution there is. When the search stands still it begins again
/// with twice the population.
class CmaSampler final : public Sampler {
 public:
  CmaSampler(const Space& space, const CmaOptions& options);
  ~CmaSampler() override;

  Point Ask(std::int64_t number) override;
  void Tell(const Observation& trial) override;

 private:
  struct Distribution;

  std::vector<double> Draw(std::int64_t number) const;
  void Decode(const std::vector<double>& x, Point& point) const;
  void EndGenerations();
  void Update();
  void KeepMargins();
  void Restart();
  bool StandsStill() const;

  const Space space_;
  const CmaOptions options_;
  std::vector<std::size_t> dims_;    // Indices of the parameters that it draws.
  std::unique_ptr<Sampler> others_;  // Draws the rest; null when there is none.
  std::vector<Observation> trials_;  // By number.
  std::unique_ptr<Distribution> now_;
};

}  // namespace orca::tune
