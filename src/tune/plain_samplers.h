// Samplers that learn nothing.
#pragma once

#include <cstdint>
#include <memory>

#include "orca/tune/sampler.h"

namespace orca::tune {

/// The laws of the space, in every cell of its grid. With `constant_grid` all cells of one round
/// have the same random numbers.
std::unique_ptr<Sampler> RandomSampler(const Space& space, std::uint64_t seed, bool constant_grid);
/// All points of a finite space in turn, the first parameter fastest.
std::unique_ptr<Sampler> GridSampler(const Space& space);
/// Scrambled Sobol points through the laws of the space.
std::unique_ptr<Sampler> SobolSampler(const Space& space, std::uint64_t seed);

}  // namespace orca::tune
