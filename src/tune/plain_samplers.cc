#include "tune/plain_samplers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "orca/core/error.h"
#include "tune/sobol.h"

namespace orca::tune {
namespace {

class Random final : public Sampler {
 public:
  Random(const Space& space, std::uint64_t seed, bool constant_grid)
      : space_(space), seed_(seed), constant_grid_(constant_grid) {}

  Point Ask(std::int64_t number) override {
    Point point = space_.Draw(seed_, number);
    if (!constant_grid_) return point;
    const Point constant = space_.Draw(seed_, number - number % space_.grid_cells());
    for (std::size_t i = 0; i < point.size(); ++i) {
      if (space_[i].law != Law::kGrid) point[i] = constant[i];
    }
    return point;
  }

  void Tell(const Observation& /*trial*/) override {}
  bool learns() const override { return false; }

 private:
  const Space space_;
  const std::uint64_t seed_;
  const bool constant_grid_;
};

class Grids final : public Sampler {
 public:
  explicit Grids(const Space& space) : space_(space) {
    if (space.Cardinality() > 0x1p53) {
      throw Error(
          Code::kInvalidArgument,
          "search_alg 'grid' wants a finite space; give every continuous parameter a step or a "
          "list of values");
    }
  }

  Point Ask(std::int64_t number) override {
    return space_.Enumerate(number % static_cast<std::int64_t>(space_.Cardinality()));
  }

  void Tell(const Observation& /*trial*/) override {}
  bool learns() const override { return false; }

 private:
  const Space space_;
};

class Sobols final : public Sampler {
 public:
  Sobols(const Space& space, std::uint64_t seed)
      : space_(space),
        seed_(seed),
        // Not 0, which would not scramble.
        sobol_(std::min(space.size(), kSobolDimensions), seed + 1 == 0 ? 1 : seed + 1) {}

  Point Ask(std::int64_t number) override {
    Point point(space_.size(), std::numeric_limits<double>::quiet_NaN());
    for (std::size_t i = 0; i < sobol_.dimensions(); ++i) {
      if (!space_.IsActive(point, i)) continue;
      point[i] = space_[i].Quantile(sobol_.At(static_cast<std::uint64_t>(number), i));
    }
    // What lies behind the last direction number is random.
    space_.Complete(point, seed_, number);
    return point;
  }

  void Tell(const Observation& /*trial*/) override {}
  bool learns() const override { return false; }

 private:
  const Space space_;
  const std::uint64_t seed_;
  const Sobol sobol_;
};

}  // namespace

std::unique_ptr<Sampler> RandomSampler(const Space& space, std::uint64_t seed, bool constant_grid) {
  return std::make_unique<Random>(space, seed, constant_grid);
}

std::unique_ptr<Sampler> GridSampler(const Space& space) { return std::make_unique<Grids>(space); }

std::unique_ptr<Sampler> SobolSampler(const Space& space, std::uint64_t seed) {
  return std::make_unique<Sobols>(space, seed);
}

}  // namespace orca::tune
