#include "tune/tpe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "orca/core/error.h"
#include "tune/parzen.h"
#include "tune/philox.h"

namespace orca::tune {
namespace {

constexpr std::size_t kMostOfBest = 25;

}  // namespace

struct TpeSampler::Trial {
  std::int64_t number;
  TrialState state;
  double loss;
  std::int64_t step;

  bool has_rank() const { return state == TrialState::kFinished || state == TrialState::kPruned; }
  // Completed ones by their loss; behind them pruned ones, those that came far first.
  std::tuple<int, double, double, std::int64_t> rank() const {
    if (state == TrialState::kFinished) return {0, loss, 0, number};
    if (step == 0) return {1, 1, 0, number};
    const double known = std::isnan(loss) ? std::numeric_limits<double>::infinity() : loss;
    return {1, -static_cast<double>(step), known, number};
  }
};

// Parameters that exist together.
struct TpeSampler::Part {
  std::vector<std::size_t> parameters;  // Places in the space.
  std::uint64_t purpose;                // Of its random numbers.
  std::unique_ptr<Parzen> densities = nullptr;
};

TpeSampler::TpeSampler(const Space& space, const TpeOptions& options)
    : space_(space), options_(options) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> together;
  for (std::size_t i = 0; i < space_.size(); ++i) {
    const std::pair condition(space_.parent(i), space_[i].parent_choice);
    const auto [found, is_new] = together.try_emplace(condition, parts_.size());
    if (is_new || !options_.multivariate) {
      found->second = parts_.size();
      parts_.push_back({.parameters = {}, .purpose = HashName("tpe:" + space_[i].name)});
    }
    parts_[found->second].parameters.push_back(i);
  }
  for (Part& part : parts_) {
    part.densities = std::make_unique<Parzen>(space_, part.parameters, options_.prior_weight);
  }
}

TpeSampler::~TpeSampler() = default;

void TpeSampler::Tell(const Observation& trial) {
  const auto at = std::lower_bound(
      trials_.begin(), trials_.end(), trial.number,
      [](const Trial& known, std::int64_t number) { return known.number < number; });
  const auto index = static_cast<std::uint32_t>(at - trials_.begin());
  if (at == trials_.end()) {
    trials_.push_back({trial.number, trial.state, trial.loss, trial.step});
    is_best_.push_back(0);
    for (Part& part : parts_) {
      if (space_.IsActive(trial.point, part.parameters[0])) part.densities->Add(index, trial.point);
    }
  } else if (at->number != trial.number) {
    throw Error(Code::kInternal, "a trial was told behind its successor");
  }
  Trial& known = trials_[index];
  const auto before = [this](std::uint32_t a, std::uint32_t b) {
    return trials_[a].rank() < trials_[b].rank();
  };
  if (known.has_rank()) {  // Paused then; it has gone on.
    const auto place = std::lower_bound(ranked_.begin(), ranked_.end(), index, before);
    if (place != ranked_.end() && *place == index) ranked_.erase(place);
  }
  known = {trial.number, trial.state, trial.loss, trial.step};
  if (!known.has_rank()) return;
  ranked_.insert(std::upper_bound(ranked_.begin(), ranked_.end(), index, before), index);
}

Point TpeSampler::Ask(std::int64_t number) {
  if (static_cast<std::int64_t>(ranked_.size()) < options_.startup) {
    return space_.Draw(options_.seed, number);
  }
  MarkBest();
  Point point(space_.size(), std::numeric_limits<double>::quiet_NaN());
  for (Part& part : parts_) {
    if (!space_.IsActive(point, part.parameters[0])) continue;
    Stream random(options_.seed, number, part.purpose);
    part.densities->Split(is_best_);
    part.densities->DrawQueries(random, static_cast<std::size_t>(options_.candidates));
    const std::span<const double> ratios = part.densities->LogRatios();
    const auto largest = std::max_element(ratios.begin(), ratios.end());
    part.densities->Get(static_cast<std::size_t>(largest - ratios.begin()), point);
  }
  return point;
}

std::vector<double> TpeSampler::LogRatios(std::span<const Point> points) {
  MarkBest();
  Parzen& densities = *parts_.front().densities;
  densities.Split(is_best_);
  densities.SetQueries(points);
  const std::span<const double> ratios = densities.LogRatios();
  return {ratios.begin(), ratios.end()};
}

void TpeSampler::MarkBest() {
  const auto n = static_cast<double>(ranked_.size());
  const double wanted = options_.gamma * (options_.gamma_of_root ? std::sqrt(n) : n);
  const std::size_t count =
      std::min({static_cast<std::size_t>(std::ceil(wanted)), kMostOfBest, ranked_.size()});
  std::fill(is_best_.begin(), is_best_.end(), 0);
  for (std::size_t i = 0; i < count; ++i) is_best_[ranked_[i]] = 1;
}

}  // namespace orca::tune
