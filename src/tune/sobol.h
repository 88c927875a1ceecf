// Sobol's sequence with the direction numbers of Joe and Kuo, scrambled.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace orca::tune {

inline constexpr std::size_t kSobolDimensions = 1111;

/// Points that fill the unit cube evenly: of the first 2^k, each elementary interval has its share.
class Sobol {
 public:
  /// `dimensions` is at most kSobolDimensions. Another seed permutes the intervals at random
  /// (Owen's scrambling, by a hash); seed 0 does not.
  Sobol(std::size_t dimensions, std::uint64_t seed);

  std::size_t dimensions() const { return directions_.size(); }
  /// Coordinate `dimension` of point `index`, which is below 2^32; in (0, 1).
  double At(std::uint64_t index, std::size_t dimension) const;

 private:
  std::vector<std::array<std::uint32_t, 32>> directions_;
  std::vector<std::uint32_t> seeds_;
  bool scrambles_;
};

}  // namespace orca::tune
