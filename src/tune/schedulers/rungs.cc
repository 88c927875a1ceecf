#include "tune/schedulers/rungs.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace orca::tune {

Rungs::Rungs(double grace, double max_t, double factor, int offset) : factor_(factor) {
  const int count = static_cast<int>(std::log(max_t / grace) / std::log(factor) -
                                     static_cast<double>(offset) + 1);
  for (int k = std::min(count, 64) - 1; k >= 0; --k)
    rungs_.push_back({.milestone = grace * std::pow(factor, k + offset), .scores = {}});
}

// Between two scores by numpy's rule: bit for bit what Ray compares with.
double Rungs::Cutoff(const std::vector<double>& scores) const {
  const double at = static_cast<double>(scores.size() - 1) * ((1 - 1 / factor_) * 100 / 100);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, scores.size() - 1);
  const double share = at - static_cast<double>(below);
  const double low = scores[below];
  const double high = scores[above];
  if (low == high || share == 0) return low;
  if (std::isinf(low)) return low;
  const double difference = high - low;
  return share < 0.5 ? low + difference * share : high - difference * (1 - share);
}

bool Rungs::Stops(std::int64_t trial, std::int64_t step, double score) {
  std::uint64_t& visited = visited_[trial];
  for (std::size_t i = 0; i < rungs_.size(); ++i) {
    auto& [milestone, scores] = rungs_[i];
    const std::uint64_t bit = std::uint64_t{1} << i;
    if (static_cast<double>(step) < milestone || (visited & bit) != 0) continue;
    visited |= bit;
    if (std::isnan(score)) return false;
    const bool is_worse = !scores.empty() && score < Cutoff(scores);
    scores.insert(std::upper_bound(scores.begin(), scores.end(), score), score);
    return is_worse;
  }
  return false;
}

Json Rungs::Save() const {
  Json state{{"rungs", Json::array()}, {"visited", Json::array()}};
  for (const auto& rung : rungs_) {
    auto scores = Json::array();
    for (const double score : rung.scores) scores.push_back(ToJson(score));
    state["rungs"].push_back(std::move(scores));
  }
  const std::map<std::int64_t, std::uint64_t> sorted(visited_.begin(), visited_.end());
  for (const auto& [trial, bits] : sorted) state["visited"].push_back({trial, bits});
  return state;
}

void Rungs::Load(const Json& state) {
  for (std::size_t i = 0; i < rungs_.size(); ++i) {
    rungs_[i].scores.clear();
    for (const auto& score : state.at("rungs").at(i)) rungs_[i].scores.push_back(ToDouble(score));
  }
  visited_.clear();
  for (const auto& entry : state.at("visited"))
    visited_[entry.at(0).get<std::int64_t>()] = entry.at(1).get<std::uint64_t>();
}

}  // namespace orca::tune
