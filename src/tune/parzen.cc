#include "tune/parzen.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <numeric>
#include <utility>

namespace orca::tune {
namespace {

constexpr std::size_t kFullWeight = 25;  // So many of the newest kernels weigh 1; older ones less.
constexpr std::uint32_t kPrior = std::numeric_limits<std::uint32_t>::max();  // No row.
constexpr double kWeighsNothing = -1e300;
const double kLogRoot2Pi = 0.5 * std::log(2 * std::numbers::pi);

std::size_t RoundUp(std::size_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

}  // namespace

Parzen::Dimension::Dimension(const Space& space, std::size_t at)
    : parameter(&space[at]), index(at) {
  if (is_category() || parameter->law == Law::kNormal) return;
  const double margin = is_stepped() ? parameter->spacing() / 2 : 0;
  low = Scale(parameter->first() - margin);
  high = Scale(parameter->last() + margin);
}

double Parzen::Dimension::Scale(double value) const {
  if (is_category()) return value;
  if (parameter->law == Law::kNormal) return parameter->ToUnit(value);
  return parameter->is_log() ? std::log(value) : value;
}

double Parzen::Dimension::Unscale(double x) const {
  if (is_category()) return x;
  if (parameter->law == Law::kNormal) return parameter->FromUnit(x);
  const double value = parameter->is_log() ? std::exp(x) : x;
  if (!is_stepped()) return std::clamp(value, parameter->low, parameter->high);
  const double spacing = parameter->spacing();
  return std::clamp(std::nearbyint(value / spacing) * spacing, parameter->first(),
                    parameter->last());
}

Parzen::Kernel::Kernel(const Dimension& dimension, double x, double width)
    : sigma(width),
      inverse(1 / (std::numbers::sqrt2 * width)),
      factor(0),
      cut((dimension.low - x) / width, (dimension.high - x) / width) {
  factor = -cut.LogMass() - (dimension.is_stepped() ? 0 : kLogRoot2Pi + std::log(width));
}

Parzen::Parzen(const Space& space, std::span<const std::size_t> parameters, double prior_weight)
    : prior_weight_(prior_weight), loops_(FastestLoops()) {
  for (const std::size_t at : parameters) {
    const Dimension dimension(space, at);
    const double middle = 0.5 * (dimension.low + dimension.high);
    columns_.push_back({.dimension = dimension,
                        .prior = Kernel(dimension, middle, dimension.high - dimension.low)});
  }
  const auto behind =
      std::stable_partition(columns_.begin(), columns_.end(),
                            [](const Column& column) { return column.dimension.is_smooth(); });
  smooth_ = static_cast<std::size_t>(behind - columns_.begin());
}

void Parzen::Add(std::uint32_t number, const Point& point) {
  numbers_.push_back(number);
  sides_.push_back(kNeither);
  kernels_.push_back(0);
  for (Column& column : columns_) {
    column.x.push_back(column.dimension.Scale(point[column.dimension.index]));
    column.kernels.push_back(column.prior);
    column.kernels.back().sigma = std::numeric_limits<double>::quiet_NaN();  // It has no width yet.
  }
}

// --- the mixtures

void Parzen::Split(std::span<const std::uint8_t> is_best) {
  FindMoves(is_best);
  Arrange();
  Mixture& rest = mixtures_[kRest];
  Resize(rest);
  for (const RowMove& move : moves_) {
    if (move.to == kBest) rest.base[move.row + 1] = kWeighsNothing;
  }
  for (const std::uint32_t row : changed_) {
    if (sides_[row] == kRest) Write(rest, row + 1, row);
  }
  Mixture& best = mixtures_[kBest];
  Resize(best);
  for (std::size_t k = 0; k < best.rows.size(); ++k) Write(best, k + 1, best.rows[k]);
  Weigh(kBest);
  Weigh(kRest);
}

void Parzen::FindMoves(std::span<const std::uint8_t> is_best) {
  moves_.clear();
  changed_.clear();
  mixtures_[kBest].rows.clear();
  for (std::uint32_t row = 0; row < numbers_.size(); ++row) {
    const Side side = is_best[numbers_[row]] != 0 ? kBest : kRest;
    if (side == kBest) mixtures_[kBest].rows.push_back(row);
    if (side == sides_[row]) continue;
    if (sides_[row] == kNeither) mixtures_[kRest].rows.push_back(row);
    moves_.push_back({row, sides_[row], side});
    changed_.push_back(row);
    sides_[row] = side;
  }
}

// Moves rows in the order of each column, and finds the widths that change by it.
void Parzen::Arrange() {
  std::array<bool, 2> all = {};  // Widths of that side may change.
  for (const Side side : {kBest, kRest}) {
    Mixture& mixture = mixtures_[side];
    mixture.observed = mixtures_[kBest].rows.size();
    if (side == kRest) mixture.observed = numbers_.size() - mixture.observed;
    const double divisor = std::min(100.0, 2.0 + static_cast<double>(mixture.observed));
    all[side] = std::exchange(mixture.divisor, divisor) != divisor;
  }
  // A move shifts half of a column: many of them would take longer than to sort it.
  const bool sorts = moves_.size() > 16 && moves_.size() > numbers_.size() / 16;
  for (Column& column : columns_) {
    if (column.dimension.is_category()) continue;
    if (sorts) {
      Sort(column);
      continue;
    }
    for (const RowMove& move : moves_) {
      if (move.from != kNeither) Erase(column, move.from, move.row);
      Insert(column, move.to, move.row);
    }
    for (const Side side : {kBest, kRest}) {
      if (all[side]) SetWidths(column, side);
    }
  }
  if (sorts) {
    changed_.resize(numbers_.size());
    std::iota(changed_.begin(), changed_.end(), 0U);
  } else {
    std::sort(changed_.begin(), changed_.end());
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
  }
}

void Parzen::Sort(Column& column) {
  // Pairs, so that comparing them does not look elsewhere.
  std::vector<std::pair<double, std::uint32_t>> sorted;
  sorted.reserve(sides_.size());
  for (std::uint32_t row = 0; row < sides_.size(); ++row) sorted.emplace_back(column.x[row], row);
  std::sort(sorted.begin(), sorted.end());
  for (std::vector<std::uint32_t>& order : column.order) order.clear();
  for (const auto& [x, row] : sorted) column.order[sides_[row]].push_back(row);
  SetWidths(column, kBest);
  SetWidths(column, kRest);
}

std::size_t Parzen::Column::Find(Side side, std::uint32_t row) const {
  const auto before = [this](std::uint32_t a, std::uint32_t b) {
    return x[a] < x[b] || (x[a] == x[b] && a < b);
  };
  const auto at = std::lower_bound(order[side].begin(), order[side].end(), row, before);
  return static_cast<std::size_t>(at - order[side].begin());
}

void Parzen::Insert(Column& column, Side side, std::uint32_t row) {
  std::vector<std::uint32_t>& order = column.order[side];
  const std::size_t place = column.Find(side, row);
  order.insert(order.begin() + static_cast<std::ptrdiff_t>(place), row);
  if (place > 0) SetWidth(column, side, place - 1);
  SetWidth(column, side, place);
  if (place + 1 < order.size()) SetWidth(column, side, place + 1);
}

void Parzen::Erase(Column& column, Side side, std::uint32_t row) {
  std::vector<std::uint32_t>& order = column.order[side];
  const std::size_t place = column.Find(side, row);
  order.erase(order.begin() + static_cast<std::ptrdiff_t>(place));
  if (place > 0) SetWidth(column, side, place - 1);
  if (place < order.size()) SetWidth(column, side, place);
}

// The width is the larger distance to the neighbours, of the outermost kernels that to the inner
// one; of a single kernel that to the ends.
void Parzen::SetWidth(Column& column, Side side, std::size_t place) {
  const std::vector<std::uint32_t>& order = column.order[side];
  const std::uint32_t row = order[place];
  const Dimension& scale = column.dimension;
  const double x = column.x[row];
  double width = 0;
  if (place > 0) width = x - column.x[order[place - 1]];
  if (place + 1 < order.size()) width = std::max(width, column.x[order[place + 1]] - x);
  if (order.size() == 1) width = std::max(x - scale.low, scale.high - x);
  const double range = scale.high - scale.low;
  width = std::clamp(width, range / mixtures_[side].divisor, range);
  if (column.kernels[row].sigma == width) return;
  column.kernels[row] = Kernel(scale, x, width);
  changed_.push_back(row);
}

void Parzen::SetWidths(Column& column, Side side) {
  for (std::size_t place = 0; place < column.order[side].size(); ++place) {
    SetWidth(column, side, place);
  }
}

void Parzen::Resize(Mixture& mixture) {
  const std::size_t used = mixture.rows.size() + 1;
  const std::size_t count = RoundUp(used);
  mixture.base.resize(count);
  mixture.weights.resize(count);
  mixture.tiles.resize(2 * smooth_ * count);
  std::fill(mixture.base.begin() + static_cast<std::ptrdiff_t>(used), mixture.base.end(),
            kWeighsNothing);
  mixture.base[0] = std::log(mixture.observed == 0 ? 1 : prior_weight_);
  for (std::size_t d = 0; d < columns_.size(); ++d) {
    const Column& column = columns_[d];
    if (column.dimension.is_category()) continue;
    mixture.base[0] += column.prior.factor;
    if (d >= smooth_) continue;
    mixture.tiles[2 * d * kLanes] = column.middle();
    mixture.tiles[(2 * d + 1) * kLanes] = column.prior.inverse;
  }
}

void Parzen::Write(Mixture& mixture, std::size_t kernel, std::uint32_t row) {
  kernels_[row] = static_cast<std::uint32_t>(kernel);
  const std::size_t tile = 2 * smooth_ * (kernel / kLanes) * kLanes + kernel % kLanes;
  double base = 0;
  for (std::size_t d = 0; d < columns_.size(); ++d) {
    const Column& column = columns_[d];
    if (column.dimension.is_category()) continue;
    base += column.kernels[row].factor;
    if (d >= smooth_) continue;
    mixture.tiles[tile + 2 * d * kLanes] = column.x[row];
    mixture.tiles[tile + (2 * d + 1) * kLanes] = column.kernels[row].inverse;
  }
  mixture.base[kernel] = base;
}

// By age: 1 for the last ones, a ramp from 1 / n before them. The prior's weight is in its base.
void Parzen::Weigh(Side side) {
  Mixture& mixture = mixtures_[side];
  const std::size_t observed = mixture.observed;
  const std::size_t ramp = observed > kFullWeight ? observed - kFullWeight : 0;
  const double start = 1.0 / static_cast<double>(std::max<std::size_t>(observed, 1));
  const double last = ramp > 1 ? static_cast<double>(ramp - 1) : 1;
  std::size_t age = 0;
  double total = 0;
  for (std::size_t k = 0; k < mixture.rows.size(); ++k) {
    if (sides_[mixture.rows[k]] != side) continue;
    const double weight = age < ramp ? start + static_cast<double>(age) / last * (1 - start) : 1;
    mixture.weights[k + 1] = weight;
    total += weight;
    ++age;
  }
  mixture.weights[0] = 1;
  mixture.total = total + (observed == 0 ? 1 : prior_weight_);
}

// --- the queries

void Parzen::DrawQueries(Stream& random, std::size_t count) {
  const Mixture& best = mixtures_[kBest];
  cumulative_.clear();
  double total = 0;
  for (std::size_t k = 0; k < best.rows.size(); ++k) {
    cumulative_.push_back(total += best.weights[k + 1]);
  }
  queries_.clear();
  for (std::size_t query = 0; query < count; ++query) {
    const double share = random.Uniform() * best.total;
    const auto chosen = std::upper_bound(cumulative_.begin(), cumulative_.end(), share);
    const auto k = static_cast<std::size_t>(chosen - cumulative_.begin());
    for (const Column& column : columns_) {
      const double u = random.Uniform();
      const bool is_prior = k == best.rows.size();
      queries_.push_back(column.dimension.is_category()
                             ? DrawCategory(column, is_prior ? -1 : column.x[best.rows[k]], u)
                             : DrawNumber(column, is_prior ? kPrior : best.rows[k], u));
    }
  }
}

// With the probability of the kernel's own category that, else any.
double Parzen::DrawCategory(const Column& column, double own_category, double u) const {
  const auto choices = static_cast<double>(column.dimension.parameter->choices);
  const double prior = prior_weight_ / static_cast<double>(mixtures_[kBest].observed + 1);
  const double own = own_category < 0 ? 0 : 1 / (1 + choices * prior);
  if (u < own) return own_category;
  return std::min(std::floor((u - own) / (1 - own) * choices), choices - 1);
}

double Parzen::DrawNumber(const Column& column, std::uint32_t row, double u) const {
  const Dimension& scale = column.dimension;
  const Kernel& kernel = row == kPrior ? column.prior : column.kernels[row];
  const double mu = row == kPrior ? column.middle() : column.x[row];
  const double x = std::clamp(mu + kernel.sigma * kernel.cut.Quantile(u), scale.low, scale.high);
  return scale.is_stepped() ? scale.Scale(scale.Unscale(x)) : x;
}

void Parzen::SetQueries(std::span<const Point> points) {
  queries_.clear();
  for (const Point& point : points) {
    for (const Column& column : columns_) {
      queries_.push_back(column.dimension.Scale(point[column.dimension.index]));
    }
  }
}

std::span<const double> Parzen::LogRatios() {
  Score(kBest);
  Score(kRest);
  std::vector<double>& ratios = scores_[kBest];
  for (std::size_t query = 0; query < ratios.size(); ++query) {
    ratios[query] -= scores_[kRest][query];
  }
  return ratios;
}

void Parzen::Get(std::size_t query, Point& point) const {
  for (std::size_t d = 0; d < columns_.size(); ++d) {
    const Dimension& dimension = columns_[d].dimension;
    point[dimension.index] = dimension.Unscale(queries_[query * columns_.size() + d]);
  }
}

void Parzen::Score(Side side) {
  const Mixture& mixture = mixtures_[side];
  const std::size_t count = mixture.base.size();
  const std::size_t queries = queries_.size() / columns_.size();
  const bool is_smooth = smooth_ == columns_.size();
  terms_.resize(std::max(terms_.size(), queries * count));  // Smaller, it would be cleared again.
  if (!is_smooth) {
    for (std::size_t query = 0; query < queries; ++query) {
      std::copy(mixture.base.begin(), mixture.base.end(),
                terms_.begin() + static_cast<std::ptrdiff_t>(query * count));
    }
  }
  for (std::size_t d = smooth_; d < columns_.size(); ++d) {
    if (columns_[d].dimension.is_category()) {
      AddCategories(d, mixture);
    } else {
      AddSteps(d, side);
    }
  }
  scores_[side].resize(queries);
  loops_.log_densities({.tiles = mixture.tiles.data(),
                        .weights = mixture.weights.data(),
                        .count = count,
                        .dims = smooth_},
                       {.x = queries_.data(),
                        .stride = columns_.size(),
                        .count = queries,
                        .start = is_smooth ? mixture.base.data() : terms_.data(),
                        .start_stride = is_smooth ? 0 : count},
                       terms_.data(), scores_[side].data());
  const double log_total = std::log(mixture.total);
  for (double& score : scores_[side]) score -= log_total;
}

void Parzen::AddCategories(std::size_t dimension, const Mixture& mixture) {
  const Column& column = columns_[dimension];
  const auto choices = static_cast<double>(column.dimension.parameter->choices);
  const double prior = prior_weight_ / static_cast<double>(mixture.observed + 1);
  const double all = 1 + choices * prior;
  const double own = std::log((1 + prior) / all);
  const double other = std::log(prior / all);
  const double of_prior = -std::log(choices);
  double* terms = terms_.data();
  for (std::size_t at = dimension; at < queries_.size(); at += columns_.size()) {
    terms[0] += of_prior;
    for (std::size_t k = 0; k < mixture.rows.size(); ++k) {
      terms[k + 1] += column.x[mixture.rows[k]] == queries_[at] ? own : other;
    }
    terms += mixture.base.size();
  }
}

void Parzen::AddSteps(std::size_t dimension, Side side) {
  const Column& column = columns_[dimension];
  const Dimension& scale = column.dimension;
  const double margin = scale.parameter->spacing() / 2;
  const Twins twins = FindTwins(column, side);
  std::map<double, std::vector<double>> masses;  // Of a value, by every pair of twins.
  double* terms = terms_.data();
  for (std::size_t at = dimension; at < queries_.size(); at += columns_.size()) {
    std::vector<double>& mass = masses[queries_[at]];
    if (mass.empty()) {
      const double value = scale.Unscale(queries_[at]);
      const double left = scale.Scale(value - margin);
      const double right = scale.Scale(value + margin);
      for (const auto& [mu, sigma] : twins.all) {
        mass.push_back(LogGaussMass((left - mu) / sigma, (right - mu) / sigma));
      }
    }
    for (std::size_t k = 0; k < twins.of_kernel.size(); ++k) terms[k] += mass[twins.of_kernel[k]];
    terms += mixtures_[side].base.size();
  }
}

Parzen::Twins Parzen::FindTwins(const Column& column, Side side) const {
  Twins twins;
  twins.of_kernel.assign(mixtures_[side].rows.size() + 1, 0);
  twins.all.emplace_back(column.middle(), column.prior.sigma);
  std::size_t first = 1;  // Of those with the x at hand.
  for (const std::uint32_t row : column.order[side]) {
    const std::pair mine(column.x[row], column.kernels[row].sigma);
    while (first < twins.all.size() && twins.all[first].first != mine.first) ++first;
    const auto same =
        std::find(twins.all.begin() + static_cast<std::ptrdiff_t>(first), twins.all.end(), mine);
    twins.of_kernel[kernels_[row]] = static_cast<std::uint32_t>(same - twins.all.begin());
    if (same == twins.all.end()) twins.all.push_back(mine);
  }
  return twins;
}

}  // namespace orca::tune
