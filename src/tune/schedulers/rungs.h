// The rungs of one bracket of asynchronous successive halving.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tune/schedulers/json.h"

namespace orca::tune {

/// The stopping form: a trial stops at a rung when it is worse than the quantile of those that were
/// there before it. Decides as Ray Tune's bracket does.
class Rungs {
 public:
  /// `offset`: how many of the lowest rungs this bracket leaves out.
  Rungs(double grace, double max_t, double factor, int offset);

  std::size_t size() const { return rungs_.size(); }
  /// Whether the trial stops. Looks at the highest rung that it has reached and not visited.
  bool Stops(std::int64_t trial, std::int64_t step, double score);

  Json Save() const;
  void Load(const Json& state);

 private:
  struct Rung {
    double milestone;
    std::vector<double> scores;  // ascending, no NaN
  };

  double Cutoff(const std::vector<double>& scores) const;

  double factor_;
  std::vector<Rung> rungs_;                                  // the highest first
  std::unordered_map<std::int64_t, std::uint64_t> visited_;  // a bit for each rung
};

}  // namespace orca::tune
