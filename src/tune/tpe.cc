#include "tune/tpe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <string>
#include <tuple>
#include <utility>

#include "orca/core/error.h"
#include "tune/normal.h"
#include "tune/philox.h"

namespace orca::tune {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::uint32_t kNowhere = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kMostOfBest = 25;
constexpr std::size_t kFullWeight = 25;  // So many of the newest kernels weigh 1; older ones less.
const double kLogRoot2Pi = 0.5 * std::log(2 * std::numbers::pi);

#if defined(__x86_64__)
constexpr std::array kTables = {&baseline::kTpe, &avx2::kTpe, &avx512::kTpe};
#else
constexpr std::array kTables = {&baseline::kTpe};
#endif

std::size_t RoundUp(std::size_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

}  // namespace

std::span<const TpeTable* const> RunnableTpe() {
  std::size_t count = 1;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) count = 2;
  if (count == 2 && __builtin_cpu_supports("avx512f") != 0 &&
      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0) {
    count = 3;
  }
#endif
  return std::span(kTables).first(count);
}

struct TpeSampler::Trial {
  std::int64_t number;
  TrialState state;
  double loss;
  std::int64_t step;

  // Completed ones by their loss; behind them pruned ones, those that came far first.
  std::tuple<int, double, double, std::int64_t> rank() const {
    if (state == TrialState::kFinished) return {0, loss, 0, number};
    if (step == 0) return {1, 1, 0, number};
    const double known = std::isnan(loss) ? std::numeric_limits<double>::infinity() : loss;
    return {1, -static_cast<double>(step), known, number};
  }
};

// A parameter on the scale of the model: the logarithm, or the number itself. Normal ones are seen
// by their distribution function.
struct TpeSampler::Dimension {
  const Parameter* parameter;
  std::size_t index;  // In the space.
  double low = 0;     // With half a step around, as `high`.
  double high = 1;

  bool is_category() const { return parameter->is_category(); }
  bool is_stepped() const { return parameter->is_stepped(); }

  explicit Dimension(const Space& space, std::size_t at) : parameter(&space[at]), index(at) {
    if (is_category() || parameter->law == Law::kNormal) return;
    const double margin = is_stepped() ? parameter->spacing() / 2 : 0;
    low = Scale(parameter->first() - margin);
    high = Scale(parameter->last() + margin);
  }

  double Scale(double value) const {
    if (parameter->law == Law::kNormal) return parameter->ToUnit(value);
    return parameter->is_log() ? std::log(value) : value;
  }

  double Unscale(double x) const {
    if (parameter->law == Law::kNormal) return parameter->FromUnit(x);
    const double value = parameter->is_log() ? std::exp(x) : x;
    if (!is_stepped()) return std::clamp(value, parameter->low, parameter->high);
    const double spacing = parameter->spacing();
    return std::clamp(std::nearbyint(value / spacing) * spacing, parameter->first(),
                      parameter->last());
  }
};

// Parameters that exist together, and what the trials in which they do know of them.
struct TpeSampler::Part {
  // A trial's number, and its kernel: the width seldom changes, so what follows from it is kept.
  struct Cell {
    double x;  // A category is its index.
    double sigma = kNaN;
    double inverse = kNaN;
    double factor = kNaN;  // Logarithm of what the kernel is divided by.
  };

  struct Column {
    std::vector<Cell> cells;           // Of each row.
    std::vector<std::uint32_t> order;  // Rows, by x.
  };

  std::vector<Dimension> dimensions;  // Those that the table's loops take come first.
  std::size_t smooth = 0;             // How many those are.
  std::int64_t parent = -1;
  std::int64_t choice = 0;
  std::uint64_t purpose = 0;
  std::vector<std::uint32_t> trials;  // Of each row, in the order of their numbers.
  std::vector<Column> columns;        // Of each dimension.

  void Add(std::uint32_t trial, const Point& point) {
    const auto row = static_cast<std::uint32_t>(trials.size());
    trials.push_back(trial);
    for (std::size_t d = 0; d < dimensions.size(); ++d) {
      Column& column = columns[d];
      const double value = point[dimensions[d].index];
      const double x = dimensions[d].is_category() ? value : dimensions[d].Scale(value);
      column.cells.push_back({.x = x});
      // Behind its equals, so that the order is that of a stable sort.
      const auto at = std::upper_bound(
          column.order.begin(), column.order.end(), x,
          [&column](double mine, std::uint32_t other) { return mine < column.cells[other].x; });
      column.order.insert(at, row);
    }
  }
};

// Kernels: one for each trial in the order of numbers, at last the prior; then padding up to
// `stride`.
struct TpeSampler::Mixture {
  std::size_t count = 0;
  std::size_t stride = 0;
  std::vector<double> base;        // Logarithm of weight and factors.
  std::vector<double> cumulative;  // Of the weights.
  std::vector<double> mu;          // [dimension][kernel]; a category's index
  std::vector<double> sigma;
  std::vector<double> inverse;  // 1 / sigma
  // [dimension]: for stepped ones, which kernels have the same mu and sigma.
  std::vector<std::vector<std::uint32_t>> twin;
  std::vector<std::vector<std::pair<double, double>>> twins;
};

TpeSampler::TpeSampler(const Space& space, const TpeOptions& options)
    : space_(space),
      options_(options),
      table_(*RunnableTpe().back()),
      best_(std::make_unique<Mixture>()),
      rest_(std::make_unique<Mixture>()) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> together;
  for (std::size_t i = 0; i < space_.size(); ++i) {
    const std::pair condition(space_.parent(i), space_[i].parent_choice);
    const auto [found, is_new] = together.try_emplace(condition, parts_.size());
    if (is_new || !options_.multivariate) {
      found->second = parts_.size();
      parts_.push_back({.parent = condition.first,
                        .choice = condition.second,
                        .purpose = HashName("tpe:" + space_[i].name)});
    }
    Part& part = parts_[found->second];
    part.dimensions.emplace_back(space_, i);
    part.columns.emplace_back();
  }
  for (Part& part : parts_) {
    const auto behind = std::stable_partition(
        part.dimensions.begin(), part.dimensions.end(),
        [](const Dimension& d) { return !d.is_category() && !d.is_stepped(); });
    part.smooth = static_cast<std::size_t>(behind - part.dimensions.begin());
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
    is_best_.push_back(false);
    for (Part& part : parts_) {
      if (space_.IsActive(trial.point, part.dimensions[0].index)) part.Add(index, trial.point);
    }
  } else if (at->number != trial.number) {
    throw Error(Code::kInternal, "a trial was told behind its successor");
  }
  Trial& known = trials_[index];
  known = {trial.number, trial.state, trial.loss, trial.step};
  if (known.state != TrialState::kFinished && known.state != TrialState::kPruned) return;
  const auto before = [this](std::uint32_t a, std::uint32_t b) {
    return trials_[a].rank() < trials_[b].rank();
  };
  ranked_.insert(std::upper_bound(ranked_.begin(), ranked_.end(), index, before), index);
}

Point TpeSampler::Ask(std::int64_t number) {
  if (static_cast<std::int64_t>(ranked_.size()) < options_.startup) {
    return space_.Draw(options_.seed, number);
  }
  MarkBest();
  Point point(space_.size(), kNaN);
  for (Part& part : parts_) {
    if (!space_.IsActive(point, part.dimensions[0].index)) continue;
    Build(part, true, *best_);
    Build(part, false, *rest_);
    DrawCandidates(part, *best_, number);
    const auto candidates = static_cast<std::size_t>(options_.candidates);
    Score(part, *best_, candidates, best_scores_);
    Score(part, *rest_, candidates, rest_scores_);
    std::size_t chosen = 0;
    for (std::size_t c = 1; c < candidates; ++c) {
      if (best_scores_[c] - rest_scores_[c] > best_scores_[chosen] - rest_scores_[chosen])
        chosen = c;
    }
    const std::size_t dims = part.dimensions.size();
    for (std::size_t d = 0; d < dims; ++d) {
      const Dimension& dimension = part.dimensions[d];
      const double x = candidates_[chosen * dims + d];
      point[dimension.index] = dimension.is_category() ? x : dimension.Unscale(x);
    }
  }
  return point;
}

std::vector<double> TpeSampler::LogRatios(std::span<const Point> points) {
  MarkBest();
  Part& part = parts_.front();
  candidates_.clear();
  for (const Point& point : points) {
    for (const Dimension& dimension : part.dimensions) {
      const double value = point[dimension.index];
      candidates_.push_back(dimension.is_category() ? value : dimension.Scale(value));
    }
  }
  Build(part, true, *best_);
  Build(part, false, *rest_);
  Score(part, *best_, points.size(), best_scores_);
  Score(part, *rest_, points.size(), rest_scores_);
  std::vector<double> ratios;
  for (std::size_t c = 0; c < points.size(); ++c) {
    ratios.push_back(best_scores_[c] - rest_scores_[c]);
  }
  return ratios;
}

void TpeSampler::MarkBest() {
  const auto n = static_cast<double>(ranked_.size());
  const double wanted = options_.gamma * (options_.gamma_of_root ? std::sqrt(n) : n);
  const std::size_t count =
      std::min({static_cast<std::size_t>(std::ceil(wanted)), kMostOfBest, ranked_.size()});
  std::fill(is_best_.begin(), is_best_.end(), false);
  for (std::size_t i = 0; i < count; ++i) is_best_[ranked_[i]] = true;
}

void TpeSampler::Build(Part& part, bool best, Mixture& mixture) {
  place_.assign(part.trials.size(), kNowhere);
  std::size_t observed = 0;
  for (std::size_t row = 0; row < part.trials.size(); ++row) {
    if (is_best_[part.trials[row]] == best) {
      place_[row] = static_cast<std::uint32_t>(observed++);
    }
  }
  const std::size_t dims = part.dimensions.size();
  mixture.count = observed + 1;
  mixture.stride = RoundUp(mixture.count);
  mixture.base.resize(mixture.stride);
  mixture.cumulative.resize(mixture.count);
  for (auto* numbers : {&mixture.mu, &mixture.sigma, &mixture.inverse}) {
    numbers->resize(dims * mixture.stride);
  }
  for (std::size_t k = mixture.count; k < mixture.stride; ++k) {
    mixture.base[k] = -1e300;  // Padding weighs nothing.
    for (std::size_t d = 0; d < dims; ++d) {
      mixture.mu[d * mixture.stride + k] = 0;
      mixture.inverse[d * mixture.stride + k] = 1;
    }
  }
  mixture.twin.resize(dims);
  mixture.twins.resize(dims);

  // By age: 1 for the last ones, a ramp from 1 / n before them.
  const std::size_t ramp = observed > kFullWeight ? observed - kFullWeight : 0;
  const double start = 1.0 / static_cast<double>(std::max<std::size_t>(observed, 1));
  double total = 0;
  for (std::size_t k = 0; k < mixture.count; ++k) {
    double weight = k == observed ? options_.prior_weight : 1;
    if (observed == 0) weight = 1;
    if (k < ramp) {
      const double way = ramp == 1 ? 0 : static_cast<double>(k) / static_cast<double>(ramp - 1);
      weight = start + way * (1 - start);
    }
    total += weight;
    mixture.cumulative[k] = total;
    mixture.base[k] = std::log(weight);
  }
  const double log_total = std::log(total);
  for (std::size_t k = 0; k < mixture.count; ++k) mixture.base[k] -= log_total;

  for (std::size_t d = 0; d < dims; ++d) {
    if (part.dimensions[d].is_category()) {
      double* const mu = mixture.mu.data() + d * mixture.stride;
      for (std::size_t row = 0; row < place_.size(); ++row) {
        if (place_[row] != kNowhere) mu[place_[row]] = part.columns[d].cells[row].x;
      }
      mu[observed] = -1;
    } else {
      BuildNumbers(part, d, mixture);
    }
  }
}

void TpeSampler::BuildNumbers(Part& part, std::size_t dimension, Mixture& mixture) {
  const Dimension& scale = part.dimensions[dimension];
  Part::Column& column = part.columns[dimension];
  double* const mu = mixture.mu.data() + dimension * mixture.stride;
  double* const sigma = mixture.sigma.data() + dimension * mixture.stride;
  double* const inverse = mixture.inverse.data() + dimension * mixture.stride;
  std::vector<std::uint32_t>& twin = mixture.twin[dimension];
  std::vector<std::pair<double, double>>& twins = mixture.twins[dimension];
  const bool stepped = scale.is_stepped();
  const std::size_t observed = mixture.count - 1;
  const double range = scale.high - scale.low;
  const double narrowest = range / std::min(100.0, 1.0 + static_cast<double>(mixture.count));
  twins.clear();
  if (stepped) twin.assign(mixture.count, 0);

  std::size_t twins_of_mu = 0;  // The first of those with the mu at hand.
  const auto set = [&](std::uint32_t row, double width) {
    const std::size_t k = place_[row];
    Part::Cell& cell = column.cells[row];
    const double x = cell.x;
    width = std::clamp(width, narrowest, range);
    if (cell.sigma != width) {
      const double mass = LogGaussMass((scale.low - x) / width, (scale.high - x) / width);
      cell.sigma = width;
      cell.inverse = 1 / width;
      cell.factor = -mass - (stepped ? 0 : kLogRoot2Pi + std::log(width));
    }
    mu[k] = x;
    sigma[k] = width;
    inverse[k] = cell.inverse;
    mixture.base[k] += cell.factor;
    if (!stepped) return;
    while (twins_of_mu < twins.size() && twins[twins_of_mu].first != x) ++twins_of_mu;
    const auto same = std::find(twins.begin() + static_cast<std::ptrdiff_t>(twins_of_mu),
                                twins.end(), std::pair(x, width));
    twin[k] = static_cast<std::uint32_t>(same - twins.begin());
    if (same == twins.end()) twins.emplace_back(x, width);
  };

  // The width is the larger distance to the neighbours, of the outermost kernels that to the inner
  // one; of a single kernel that to the ends.
  std::uint32_t last = kNowhere;
  double gap_before_last = observed == 1 ? -1 : 0;
  for (const std::uint32_t row : column.order) {
    if (place_[row] == kNowhere) continue;
    if (last != kNowhere) {
      const double gap = column.cells[row].x - column.cells[last].x;
      set(last, std::max(gap_before_last, gap));
      gap_before_last = gap;
    }
    last = row;
  }
  if (last != kNowhere) {
    const double x = column.cells[last].x;
    const double alone = std::max(x - scale.low, scale.high - x);
    set(last, observed == 1 ? alone : gap_before_last);
  }

  const double middle = 0.5 * (scale.low + scale.high);
  mu[observed] = middle;
  sigma[observed] = range;
  inverse[observed] = 1 / range;
  const double mass = LogGaussMass(-0.5, 0.5);
  mixture.base[observed] += -mass - (stepped ? 0 : kLogRoot2Pi + std::log(range));
  if (stepped) {
    twin[observed] = static_cast<std::uint32_t>(twins.size());
    twins.emplace_back(middle, range);
  }
}

void TpeSampler::DrawCandidates(const Part& part, const Mixture& mixture, std::int64_t number) {
  Stream random(options_.seed, number, part.purpose);
  const std::size_t dims = part.dimensions.size();
  candidates_.clear();
  for (std::int64_t c = 0; c < options_.candidates; ++c) {
    const auto chosen = std::upper_bound(mixture.cumulative.begin(), mixture.cumulative.end() - 1,
                                         random.Uniform() * mixture.cumulative.back());
    const auto k = static_cast<std::size_t>(chosen - mixture.cumulative.begin());
    for (std::size_t d = 0; d < dims; ++d) {
      const Dimension& dimension = part.dimensions[d];
      const double mu = mixture.mu[d * mixture.stride + k];
      const double u = random.Uniform();
      if (dimension.is_category()) {
        // With the probability of the kernel's own category that, else any.
        const auto choices = static_cast<double>(dimension.parameter->choices);
        const double prior = options_.prior_weight / static_cast<double>(mixture.count);
        const double own = mu < 0 ? 0 : 1 / (1 + choices * prior);
        const double other = (u - own) / (1 - own);
        candidates_.push_back(u < own ? mu : std::min(std::floor(other * choices), choices - 1));
        continue;
      }
      const double sigma = mixture.sigma[d * mixture.stride + k];
      const double z =
          TruncatedQuantile(u, (dimension.low - mu) / sigma, (dimension.high - mu) / sigma);
      double x = std::clamp(mu + sigma * z, dimension.low, dimension.high);
      if (dimension.is_stepped()) x = dimension.Scale(dimension.Unscale(x));
      candidates_.push_back(x);
    }
  }
}

void TpeSampler::Score(const Part& part, const Mixture& mixture, std::size_t candidates,
                       std::vector<double>& scores) {
  const std::size_t dims = part.dimensions.size();
  terms_.resize(candidates * mixture.stride);
  numbers_.clear();
  for (std::size_t c = 0; c < candidates; ++c) {
    const double* const x = candidates_.data() + c * dims;
    numbers_.insert(numbers_.end(), x, x + part.smooth);
  }
  table_.evaluate({.base = mixture.base.data(),
                   .mu = mixture.mu.data(),
                   .inverse_sigma = mixture.inverse.data(),
                   .stride = mixture.stride,
                   .dims = part.smooth},
                  numbers_.data(), candidates, terms_.data());
  for (std::size_t d = part.smooth; d < dims; ++d) {
    if (part.dimensions[d].is_category()) {
      AddCategories(part, d, mixture, candidates);
    } else {
      AddSteps(part, d, mixture, candidates);
    }
  }
  scores.resize(candidates);
  for (std::size_t c = 0; c < candidates; ++c) {
    scores[c] = table_.log_sum_exp(terms_.data() + c * mixture.stride, mixture.stride);
  }
}

void TpeSampler::AddSteps(const Part& part, std::size_t dimension, const Mixture& mixture,
                          std::size_t candidates) {
  const Dimension& scale = part.dimensions[dimension];
  const double margin = scale.parameter->spacing() / 2;
  const std::vector<std::uint32_t>& twin = mixture.twin[dimension];
  const std::vector<std::pair<double, double>>& twins = mixture.twins[dimension];
  std::map<double, std::vector<double>> masses;  // Of a value, by every pair of mu and sigma.
  for (std::size_t c = 0; c < candidates; ++c) {
    const double x = candidates_[c * part.dimensions.size() + dimension];
    std::vector<double>& mass = masses[x];
    if (mass.empty()) {
      const double value = scale.Unscale(x);
      const double left = scale.Scale(value - margin);
      const double right = scale.Scale(value + margin);
      for (const auto& [mu, sigma] : twins) {
        mass.push_back(LogGaussMass((left - mu) / sigma, (right - mu) / sigma));
      }
    }
    double* const terms = terms_.data() + c * mixture.stride;
    for (std::size_t k = 0; k < mixture.count; ++k) terms[k] += mass[twin[k]];
  }
}

void TpeSampler::AddCategories(const Part& part, std::size_t dimension, const Mixture& mixture,
                               std::size_t candidates) {
  const auto choices = static_cast<double>(part.dimensions[dimension].parameter->choices);
  const double prior = options_.prior_weight / static_cast<double>(mixture.count);
  const double all = 1 + choices * prior;
  const double own = std::log((1 + prior) / all);
  const double other = std::log(prior / all);
  const double* const mu = mixture.mu.data() + dimension * mixture.stride;
  for (std::size_t c = 0; c < candidates; ++c) {
    const double x = candidates_[c * part.dimensions.size() + dimension];
    double* const terms = terms_.data() + c * mixture.stride;
    for (std::size_t k = 0; k + 1 < mixture.count; ++k) terms[k] += mu[k] == x ? own : other;
    terms[mixture.count - 1] -= std::log(choices);
  }
}

}  // namespace orca::tune
