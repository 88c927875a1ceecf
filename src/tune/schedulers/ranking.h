// Trials by their scores.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tune/schedulers/json.h"

namespace orca::tune {

/// Scores in ascending order; of equal ones, the younger trial is worse. Scores are no NaNs. A
/// change moves memory, 16 bytes a trial: at 10,000 trials still a few microseconds.
class Ranking {
 public:
  std::size_t size() const { return entries_.size(); }
  void Insert(double score, std::int64_t trial) {
    const Entry entry{score, -trial};
    entries_.insert(std::upper_bound(entries_.begin(), entries_.end(), entry), entry);
  }
  void Erase(double score, std::int64_t trial) {
    const auto found = Find({score, -trial});
    if (found != entries_.end() && *found == Entry{score, -trial}) entries_.erase(found);
  }
  /// Of a trial that is in it with score `from`: moves only what lies between.
  void Move(double from, double to, std::int64_t trial) {
    const auto old = entries_.begin() + (Find({from, -trial}) - entries_.begin());
    const auto fresh = entries_.begin() + (Find({to, -trial}) - entries_.begin());
    if (fresh > old) {
      *std::move(old + 1, fresh, old) = {to, -trial};
    } else {
      std::move_backward(fresh, old, old + 1);
      *fresh = {to, -trial};
    }
  }
  /// How many are worse.
  std::size_t Rank(double score, std::int64_t trial) const {
    return static_cast<std::size_t>(Find({score, -trial}) - entries_.begin());
  }
  double score(std::size_t rank) const { return entries_[rank].score; }
  std::int64_t trial(std::size_t rank) const { return -entries_[rank].negated; }

  Json Save() const {
    auto state = Json::array();
    for (const auto& entry : entries_) state.push_back({ToJson(entry.score), -entry.negated});
    return state;
  }
  void Load(const Json& state) {
    entries_.clear();
    for (const auto& entry : state)
      entries_.push_back({ToDouble(entry.at(0)), -entry.at(1).get<std::int64_t>()});
    std::sort(entries_.begin(), entries_.end());
  }

 private:
  // Trivial, so that it moves as bytes.
  struct Entry {
    double score;
    std::int64_t negated;  // trial
    auto operator<=>(const Entry&) const = default;
  };

  std::vector<Entry>::const_iterator Find(const Entry& entry) const {
    return std::lower_bound(entries_.begin(), entries_.end(), entry);
  }

  std::vector<Entry> entries_;
};

}  // namespace orca::tune
