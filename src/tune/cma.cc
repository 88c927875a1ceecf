#include "tune/cma.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <tuple>

#include "orca/core/error.h"
#include "tune/normal.h"
#include "tune/philox.h"
#include "tune/tpe.h"

namespace orca::tune {
namespace {

constexpr double kTolerance = 1e-12;
constexpr double kWorstCondition = 1e14;
constexpr double kOutside = 0.25;  // So far from the cube a draw may be.

double Norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

// What follows from the dimension and the population.
struct Strategy {
  std::size_t lambda, mu;
  std::vector<double> weights;  // Of all, the best first; the worse half is negative.
  double mueff, c1, cmu, cs, ds, cc, chi;

  Strategy(std::size_t dims, std::size_t population) : lambda(population), mu(population / 2) {
    const auto d = static_cast<double>(dims);
    double sum = 0;
    double squares = 0;
    double negative = 0;
    double negative_squares = 0;
    for (std::size_t i = 0; i < lambda; ++i) {
      const double w =
          std::log((static_cast<double>(lambda) + 1) / 2) - std::log(static_cast<double>(i) + 1);
      weights.push_back(w);
      (i < mu ? sum : negative) += w;
      (i < mu ? squares : negative_squares) += w * w;
    }
    mueff = sum * sum / squares;
    const double mueff_negative = negative * negative / negative_squares;
    c1 = 2 / ((d + 1.3) * (d + 1.3) + mueff);
    cmu = std::min(1 - c1 - 1e-8, 2 * (mueff - 2 + 1 / mueff) / ((d + 2) * (d + 2) + mueff));
    const double scale =
        std::min({1 + c1 / cmu, 1 + 2 * mueff_negative / (mueff + 2), (1 - c1 - cmu) / (d * cmu)});
    for (double& w : weights) w *= w >= 0 ? 1 / sum : scale / std::abs(negative);
    cs = (mueff + 2) / (d + mueff + 5);
    ds = 1 + 2 * std::max(0.0, std::sqrt((mueff - 1) / (d + 1)) - 1) + cs;
    cc = (4 + mueff / d) / (d + 4 + 2 * mueff / d);
    chi = std::sqrt(d) * (1 - 1 / (4 * d) + 1 / (21 * d * d));
  }
};

}  // namespace

struct CmaSampler::Distribution {
  Strategy strategy;
  std::int64_t first;  // Number of the first trial of the generation.
  std::int64_t restarts = 0;
  std::int64_t generations = 0;
  std::vector<double> mean;
  double sigma;
  Matrix covariance;
  Matrix vectors;              // Of the covariance, ...
  std::vector<double> axes;    // ... and the roots of its eigenvalues.
  std::vector<double> margin;  // A factor for each dimension; 1 but for stepped ones.
  std::vector<double> path_sigma;
  std::vector<double> path_covariance;
  std::deque<double> bests;  // Of the last generations.
  double least = std::numeric_limits<double>::infinity();
  std::int64_t least_at = 0;  // In which generation it was found.

  Distribution(std::size_t dims, std::size_t population, std::int64_t begin, double step)
      : strategy(dims, population),
        first(begin),
        mean(dims, 0.5),
        sigma(step),
        covariance(Matrix::Identity(dims)),
        vectors(Matrix::Identity(dims)),
        axes(dims, 1),
        margin(dims, 1),
        path_sigma(dims, 0),
        path_covariance(dims, 0) {}

  // vectors * (by axis: axes^power * (vectors' * y))
  std::vector<double> Transform(const std::vector<double>& y, double power) const {
    const std::size_t d = y.size();
    std::vector<double> result(d, 0);
    for (std::size_t k = 0; k < d; ++k) {
      double along = 0;
      for (std::size_t i = 0; i < d; ++i) along += vectors(i, k) * y[i];
      along *= std::pow(axes[k], power);
      for (std::size_t i = 0; i < d; ++i) result[i] += vectors(i, k) * along;
    }
    return result;
  }
};

CmaSampler::CmaSampler(const Space& space, const CmaOptions& options)
    : space_(space), options_(options) {
  for (std::size_t i = 0; i < space_.size(); ++i) {
    if (!space_[i].is_category() && space_.parent(i) < 0) dims_.push_back(i);
  }
  if (dims_.size() < space_.size()) {
    others_ = std::make_unique<TpeSampler>(
        space_, TpeOptions{.seed = options_.seed, .multivariate = false});
  }
  const std::size_t d = std::max<std::size_t>(dims_.size(), 1);
  const auto usual =
      static_cast<std::int64_t>(4 + std::floor(3 * std::log(static_cast<double>(d))));
  const std::int64_t population = options_.population > 0 ? options_.population : usual;
  now_ = std::make_unique<Distribution>(
      d, static_cast<std::size_t>(std::max<std::int64_t>(population, 4)), 0, options_.sigma);
}

CmaSampler::~CmaSampler() = default;

void CmaSampler::Tell(const Observation& trial) {
  if (others_) others_->Tell(trial);
  if (trial.number > static_cast<std::int64_t>(trials_.size())) {
    throw Error(Code::kInternal, "a trial was told before its predecessor");
  }
  if (trial.number == static_cast<std::int64_t>(trials_.size())) {
    trials_.push_back(trial);
  } else {
    trials_[static_cast<std::size_t>(trial.number)] = trial;
  }
}

Point CmaSampler::Ask(std::int64_t number) {
  Point point = others_ ? others_->Ask(number) : Point(space_.size());
  if (dims_.empty()) return point;
  EndGenerations();
  Decode(Draw(number), point);
  return point;
}

std::vector<double> CmaSampler::Draw(std::int64_t number) const {
  const std::size_t d = dims_.size();
  Stream random(options_.seed, number, HashName("cma"));
  std::vector<double> z(d);
  std::vector<double> x(d);
  for (double& value : z) value = Ndtri(random.Uniform() * (1 - 0x1p-52) + 0x1p-54);
  for (std::size_t i = 0; i < d; ++i) {
    double y = 0;
    for (std::size_t k = 0; k < d; ++k) y += now_->vectors(i, k) * now_->axes[k] * z[k];
    x[i] = std::clamp(now_->mean[i] + now_->sigma * now_->margin[i] * y, -kOutside, 1 + kOutside);
  }
  return x;
}

void CmaSampler::Decode(const std::vector<double>& x, Point& point) const {
  // Moved to the edge, not drawn anew: else the search would stay away from an edge, and all the
  // more from a corner. The distribution learns from the places outside: those at the edge would
  // narrow it.
  for (std::size_t i = 0; i < dims_.size(); ++i) {
    point[dims_[i]] = space_[dims_[i]].FromUnit(std::clamp(x[i], 0.0, 1.0));
  }
}

void CmaSampler::EndGenerations() {
  for (;;) {
    const auto end = static_cast<std::size_t>(now_->first) + now_->strategy.lambda;
    if (end > trials_.size()) return;
    const auto begin = trials_.begin() + now_->first;
    if (std::any_of(begin, trials_.begin() + static_cast<std::ptrdiff_t>(end),
                    [](const auto& trial) { return trial.state == TrialState::kRunning; })) {
      return;
    }
    Update();
  }
}

void CmaSampler::Update() {
  Distribution& now = *now_;
  const Strategy& s = now.strategy;
  const std::size_t d = dims_.size();
  const auto first = static_cast<std::size_t>(now.first);

  // Pruned ones behind complete ones, failed ones last.
  std::vector<std::size_t> order(s.lambda);
  std::iota(order.begin(), order.end(), first);
  std::sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
    const auto rank = [](const Observation& trial) {
      const double loss =
          std::isnan(trial.loss) ? std::numeric_limits<double>::infinity() : trial.loss;
      return std::tuple(trial.state, trial.state == TrialState::kFailed ? 0 : loss, trial.number);
    };
    return rank(trials_[a]) < rank(trials_[b]);
  });

  // How each trial lies to the mean, in steps. Its exact place is drawn once more; only where that
  // gives another point (it is from an older distribution, or was given) the point itself counts.
  std::vector<std::vector<double>> steps;
  for (const std::size_t index : order) {
    std::vector<double> x = Draw(trials_[index].number);
    Point drawn = trials_[index].point;
    Decode(x, drawn);
    for (std::size_t i = 0; i < d; ++i) {
      const double value = trials_[index].point[dims_[i]];
      if (drawn[dims_[i]] != value) x[i] = space_[dims_[i]].ToUnit(value);
      x[i] = (x[i] - now.mean[i]) / (now.sigma * now.margin[i]);
    }
    steps.push_back(std::move(x));
  }

  std::vector<double> step(d, 0);
  for (std::size_t k = 0; k < s.mu; ++k) {
    for (std::size_t i = 0; i < d; ++i) step[i] += s.weights[k] * steps[k][i];
  }
  // The paths take the way that the mean really went: one that was stopped at the edge again and
  // again would make the steps longer and longer.
  for (std::size_t i = 0; i < d; ++i) {
    const double scale = now.sigma * now.margin[i];
    const double before = now.mean[i];
    now.mean[i] = std::clamp(before + scale * step[i], 0.0, 1.0);
    if (now.mean[i] == 0 || now.mean[i] == 1) step[i] = (now.mean[i] - before) / scale;
  }

  ++now.generations;
  const std::vector<double> whitened = now.Transform(step, -1);
  const double forget = std::sqrt(s.cs * (2 - s.cs) * s.mueff);
  for (std::size_t i = 0; i < d; ++i) {
    now.path_sigma[i] = (1 - s.cs) * now.path_sigma[i] + forget * whitened[i];
  }
  const double length = Norm(now.path_sigma);
  const double usual = std::sqrt(1 - std::pow(1 - s.cs, 2 * static_cast<double>(now.generations)));
  const bool goes_on = length / usual < (1.4 + 2 / (static_cast<double>(d) + 1)) * s.chi;
  const double h = goes_on ? 1 : 0;
  const double gain = h * std::sqrt(s.cc * (2 - s.cc) * s.mueff);
  for (std::size_t i = 0; i < d; ++i) {
    now.path_covariance[i] = (1 - s.cc) * now.path_covariance[i] + gain * step[i];
  }

  std::vector<double> weights = s.weights;
  double total = 0;
  for (std::size_t k = 0; k < s.lambda; ++k) {
    total += s.weights[k];
    if (weights[k] >= 0) continue;
    const double size = Norm(now.Transform(steps[k], -1));
    weights[k] *= static_cast<double>(d) / (size * size + 1e-8);
  }
  const double keep = 1 + s.c1 * (1 - h) * s.cc * (2 - s.cc) - s.c1 - s.cmu * total;
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double change = 0;
      for (std::size_t k = 0; k < s.lambda; ++k) change += weights[k] * steps[k][i] * steps[k][j];
      const double value = keep * now.covariance(i, j) +
                           s.c1 * now.path_covariance[i] * now.path_covariance[j] + s.cmu * change;
      now.covariance(i, j) = value;
      now.covariance(j, i) = value;
    }
  }
  // A generation of given points may be far away; the step never more than e-folds.
  now.sigma *= std::exp(std::min(1.0, s.cs / s.ds * (length / s.chi - 1)));
  now.sigma = std::min(now.sigma, 1e3);

  now.vectors = now.covariance;
  now.axes = Eigen(now.vectors);
  for (double& axis : now.axes) axis = std::sqrt(std::max(axis, 1e-30));
  KeepMargins();

  now.bests.push_back(trials_[order[0]].loss);
  const std::size_t remembered =
      10 + static_cast<std::size_t>(
               std::ceil(30.0 * static_cast<double>(d) / static_cast<double>(s.lambda)));
  if (now.bests.size() > remembered) now.bests.pop_front();
  const bool still = now.bests.size() == remembered && StandsStill();
  if (now.bests.back() < now.least) {
    now.least = now.bests.back();
    now.least_at = now.generations;
  }
  const bool stagnates =
      static_cast<double>(now.generations - now.least_at) >
      100 + 100 * std::pow(static_cast<double>(d), 1.5) / static_cast<double>(s.lambda);
  now.first += static_cast<std::int64_t>(s.lambda);
  const auto [narrow, wide] = std::minmax_element(now.axes.begin(), now.axes.end());
  if (still || stagnates || now.sigma * *wide < kTolerance ||
      *wide * *wide > kWorstCondition * *narrow * *narrow) {
    Restart();
  }
}

bool CmaSampler::StandsStill() const {
  const auto [low, high] = std::minmax_element(now_->bests.begin(), now_->bests.end());
  return *high - *low < kTolerance;
}

void CmaSampler::Restart() {
  const std::int64_t restarts = now_->restarts + 1;
  auto fresh = std::make_unique<Distribution>(dims_.size(), now_->strategy.lambda * 2, now_->first,
                                              options_.sigma);
  fresh->restarts = restarts;
  Stream random(options_.seed, restarts, HashName("cma:restart"));
  for (double& value : fresh->mean) value = random.Uniform();
  now_ = std::move(fresh);
}

// A stepped parameter whose draws all fall into one cell would never leave it. So on each side of
// the cell there stays a chance of 1 / (d lambda), together or alone (Hamano et al., 2022).
void CmaSampler::KeepMargins() {
  Distribution& now = *now_;
  const double alpha =
      1 / (static_cast<double>(dims_.size()) * static_cast<double>(now.strategy.lambda));
  for (std::size_t i = 0; i < dims_.size(); ++i) {
    const Parameter& p = space_[dims_[i]];
    if (!p.is_stepped() || p.Cardinality() < 2) continue;
    const double root = std::sqrt(now.covariance(i, i));
    const double deviation = now.sigma * now.margin[i] * root;
    const double value = p.FromUnit(now.mean[i]);
    // The ends of the cell, between its value and the neighbours.
    const auto between = [&](double a, double b) {
      if (!p.is_log()) return (p.ToUnit(a) + p.ToUnit(b)) / 2;
      const double left = std::log(p.first() - p.spacing() / 2);
      const double right = std::log(p.last() + p.spacing() / 2);
      return (std::log((a + b) / 2) - left) / (right - left);
    };
    const bool is_first = value <= p.first();
    const bool is_last = value >= p.last();
    if (is_first || is_last) {
      const double end =
          is_first ? between(value, value + p.spacing()) : between(value - p.spacing(), value);
      const double reach = -Ndtri(alpha) * deviation;
      const double away = now.mean[i] - end;
      now.mean[i] = end + std::copysign(std::min(std::abs(away), reach), away);
      continue;
    }
    const double left = between(value - p.spacing(), value);
    const double right = between(value, value + p.spacing());
    const double below = Ndtr((left - now.mean[i]) / deviation);
    const double above = Ndtr((now.mean[i] - right) / deviation);
    const double middle = 1 - below - above;
    const double low = std::max(below, alpha / 2);
    const double high = std::max(above, alpha / 2);
    if (low == below && high == above) continue;
    const double excess = 1 - low - high - middle;
    const double shared = low + middle + high - 3 * alpha / 2;
    const double new_low = low + excess * (low - alpha / 2) / shared;
    const double new_high = high + excess * (high - alpha / 2) / shared;
    const double to_low = -Ndtri(new_low);
    const double to_high = -Ndtri(new_high);
    now.mean[i] = (left * to_high + right * to_low) / (to_low + to_high);
    now.margin[i] = (right - left) / (to_low + to_high) / (now.sigma * root);
  }
}

}  // namespace orca::tune
