// Trials by their scores.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tune/schedulers/json.h"

namespace orca::tune {

/// Scores in ascending order; of equal ones, the younger trial is worse. Scores are no NaNs. A
/// change moves memory, 16 bytes a trial: at 10,000 trials still a few microseconds.
class Ranking {
 public:
  using Entry = std::pair<double, std::int64_t>;  // score, -trial

  std::size_t size() const { return entries_.size(); }
  void Insert(double score, std::int64_t trial) {
    const Entry entry{score, -trial};
    entries_.insert(std::upper_bound(entries_.begin(), entries_.end(), entry), entry);
  }
  void Erase(double score, std::int64_t trial) {
    const auto found = Find(score, trial);
    if (found != entries_.end() && *found == Entry{score, -trial}) entries_.erase(found);
  }
  /// How many are worse.
  std::size_t Rank(double score, std::int64_t trial) const {
    return static_cast<std::size_t>(Find(score, trial) - entries_.begin());
  }
  double score(std::size_t rank) const { return entries_[rank].first; }
  std::int64_t trial(std::size_t rank) const { return -entries_[rank].second; }

  Json Save() const {
    auto state = Json::array();
    for (const auto& [score, trial] : entries_) state.push_back({ToJson(score), -trial});
    return state;
  }
  void Load(const Json& state) {
    entries_.clear();
    for (const auto& entry : state)
      entries_.emplace_back(ToDouble(entry.at(0)), -entry.at(1).get<std::int64_t>());
    std::sort(entries_.begin(), entries_.end());
  }

 private:
  std::vector<Entry>::const_iterator Find(double score, std::int64_t trial) const {
    return std::lower_bound(entries_.begin(), entries_.end(), Entry{score, -trial});
  }

  std::vector<Entry> entries_;
};

}  // namespace orca::tune
