#include "tune/gp.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

#include "orca/core/error.h"
#include "tune/lbfgs.h"
#include "tune/loops.h"
#include "tune/normal.h"
#include "tune/philox.h"
#include "tune/plain_samplers.h"
#include "tune/sobol.h"

namespace orca::tune {
namespace {

constexpr double kLeastNoise = 1e-6;
constexpr double kHuge = 1e100;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kLogRoot2Pi = 0.5 * std::log(2 * std::numbers::pi);
constexpr std::size_t kMostFitted = 128;  // Observations that the parameters are fitted to.
constexpr std::size_t kFewestFitted = 4;  // Fewer say nothing about lengths.
// The logarithm of an improvement that is not worth every trial, in deviations of all losses.
const double kLittle = std::log(0.03);

// Of r^2 / 5, and its derivative.
double Matern(double distance, double& derivative) {
  const double r = std::sqrt(5 * distance);
  const double decay = std::exp(-r);
  derivative = -5.0 / 6 * (1 + r) * decay;
  return (1 + r + r * r / 3) * decay;
}

// Removes from L^-1 y the part of the likeliest constant; returns that constant.
double RemoveMean(const Matrix& lower, std::vector<double>& solved) {
  const auto dot = FastestLoops().dot;
  std::vector<double> ones(solved.size(), 1);
  SolveLower(lower, ones);
  const double mean =
      dot(ones.data(), solved.data(), ones.size()) / dot(ones.data(), ones.data(), ones.size());
  for (std::size_t i = 0; i < ones.size(); ++i) solved[i] -= mean * ones[i];
  return mean;
}

void Standardise(std::vector<double>& y) {
  const auto n = static_cast<double>(y.size());
  const double mean = std::accumulate(y.begin(), y.end(), 0.0) / n;
  double variance = 0;
  for (const double value : y) variance += (value - mean) * (value - mean);
  const double deviation = std::max(std::sqrt(variance / n), 1e-12);
  for (double& value : y) value = (value - mean) / deviation;
}

double YeoJohnson(double y, double power) {
  if (y < 0) return -YeoJohnson(-y, 2 - power);
  return std::abs(power) < 1e-9 ? std::log1p(y) : (std::pow(1 + y, power) - 1) / power;
}

// Of one coordinate; categories are the same or not.
double Difference(double a, double b, bool is_category) {
  if (is_category) return a == b ? 0 : 1;
  return a - b;
}

// Whether `b` is in the surroundings of `a`: within a quarter of the space's diagonal.
bool AreClose(const double* a, const double* b, const std::vector<bool>& is_category) {
  double sum = 0;
  for (std::size_t j = 0; j < is_category.size(); ++j) {
    const double difference = Difference(a[j], b[j], is_category[j]);
    sum += difference * difference;
  }
  return 16 * sum < static_cast<double>(is_category.size());
}

}  // namespace

void MakeNormal(std::vector<double>& losses) {
  // So small that sums of their squares are numbers.
  double largest_loss = 0;
  for (const double y : losses) largest_loss = std::max(largest_loss, std::abs(y));
  if (largest_loss > kHuge) {
    for (double& y : losses) y = y / largest_loss * kHuge;
  }
  // In units of the better half: a few huge losses must not make all others look alike.
  std::vector<double> sorted = losses;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t half = sorted.size() / 2;
  const double median = sorted[half];
  double spread = 0;
  for (std::size_t i = 0; i < half; ++i) spread += (median - sorted[i]) / static_cast<double>(half);
  if (spread > 1e-12 * std::abs(median) && spread * kHuge > sorted.back() - median) {
    for (double& y : losses) y = (y - median) / spread;
  } else {
    Standardise(losses);
  }
  const auto n = static_cast<double>(losses.size());
  double logarithms = 0;
  for (const double y : losses) logarithms += std::copysign(std::log1p(std::abs(y)), y);
  double best = 1;
  double largest = -kInfinity;
  for (int tenths = -10; tenths <= 30; ++tenths) {
    const double power = tenths / 10.0;
    double sum = 0;
    double squares = 0;
    for (const double y : losses) {
      const double value = YeoJohnson(y, power);
      sum += value;
      squares += value * value;
    }
    const double variance = squares / n - sum / n * (sum / n);
    if (!(variance > 0)) continue;
    const double likelihood = -0.5 * n * std::log(variance) + (power - 1) * logarithms;
    if (likelihood <= largest) continue;
    largest = likelihood;
    best = power;
  }
  for (double& y : losses) y = YeoJohnson(y, best);
  Standardise(losses);
}

double LogImprovement(double z, double& derivative) {
  if (z > -1) {
    const double cdf = Ndtr(z);
    const double value = std::exp(-0.5 * z * z - kLogRoot2Pi) + z * cdf;
    derivative = cdf / value;
    return std::log(value);
  }
  // density * (1 + z * ratio), ratio = cdf / density; far out 1 and z * ratio cancel.
  const double log_density = -0.5 * z * z - kLogRoot2Pi;
  const double inverse = 1 / (z * z);
  const double ratio = std::exp(LogNdtr(z) - log_density);
  const double rest =
      z > -15 ? 1 + z * ratio
              : inverse * (1 - inverse * (3 - inverse * (15 - inverse * (105 - 945 * inverse))));
  derivative = ratio / rest;
  return log_density + std::log(rest);
}

GaussianProcess::GaussianProcess(std::vector<double> x, std::vector<double> y,
                                 std::vector<bool> is_category)
    : x_(std::move(x)), y_(std::move(y)), is_category_(std::move(is_category)) {}

double GaussianProcess::Distance(const double* a, const double* b,
                                 const std::vector<double>& weights) const {
  double sum = 0;
  for (std::size_t j = 0; j < dims(); ++j) {
    const double difference = Difference(a[j], b[j], is_category_[j]);
    sum += weights[j] * difference * difference;
  }
  return sum;
}

double GaussianProcess::Loss(std::span<const double> logarithms, std::span<double> gradient) const {
  const std::size_t n = size();
  const std::size_t d = dims();
  std::vector<double> weights(d);
  for (std::size_t j = 0; j < d; ++j) weights[j] = std::exp(logarithms[j]);
  const double scale = std::exp(logarithms[d]);
  const double extra = std::exp(logarithms[d + 1]);
  const double noise = extra + kLeastNoise;

  Matrix lower(n);
  Matrix shapes(n);  // The kernel without its scale below the diagonal, its derivative above.
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      double derivative = 0;
      const double shape =
          Matern(Distance(x_.data() + i * d, x_.data() + k * d, weights), derivative);
      shapes(i, k) = shape;
      shapes(k, i) = derivative;
      lower(i, k) = lower(k, i) = scale * shape;
    }
    lower(i, i) = scale + noise;
  }
  if (!Cholesky(lower)) return kInfinity;
  std::vector<double> alpha = y_;
  SolveLower(lower, alpha);
  RemoveMean(lower, alpha);  // The best mean for these parameters: its gradient is 0.
  double loss = static_cast<double>(n) * kLogRoot2Pi;
  for (std::size_t i = 0; i < n; ++i) loss += 0.5 * alpha[i] * alpha[i] + std::log(lower(i, i));
  SolveUpper(lower, alpha);

  const auto dot = FastestLoops().dot;
  const Matrix columns = InverseColumns(lower);
  std::fill(gradient.begin(), gradient.end(), 0);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k <= i; ++k) {
      const double inverse = dot(columns.row(i) + i, columns.row(k) + i, n - i);
      // The trace counts what is off the diagonal twice.
      const double factor = 0.5 * (inverse - alpha[i] * alpha[k]) * (i == k ? 1 : 2);
      if (i == k) {
        gradient[d] += factor * scale;
        gradient[d + 1] += factor * extra;
        continue;
      }
      gradient[d] += factor * scale * shapes(i, k);
      const double slope = factor * scale * shapes(k, i);
      for (std::size_t j = 0; j < d; ++j) {
        const double difference = Difference(x_[i * d + j], x_[k * d + j], is_category_[j]);
        gradient[j] += slope * difference * difference * weights[j];
      }
    }
  }

  // Priors: lengths neither tiny nor huge, nor very different without a reason; scale Gamma(2, 1),
  // noise Gamma(1.1, 30).
  const double middle = std::accumulate(logarithms.begin(),
                                        logarithms.begin() + static_cast<std::ptrdiff_t>(d), 0.0) /
                        static_cast<double>(d);
  for (std::size_t j = 0; j < d; ++j) {
    const double apart = logarithms[j] - middle;
    loss += 0.1 / weights[j] + 0.1 * weights[j] + 0.5 * apart * apart;
    gradient[j] += -0.1 / weights[j] + 0.1 * weights[j] + apart;
  }
  loss -= std::log(scale) - scale;
  gradient[d] -= 1 - scale;
  loss -= 0.1 * std::log(noise) - 30 * noise;
  gradient[d + 1] -= (0.1 / noise - 30) * extra;
  return loss;
}

GaussianProcess::Parameters GaussianProcess::Fit() const {
  const std::size_t d = dims();
  const std::vector<double> low(d + 2, -15);
  const std::vector<double> high(d + 2, 10);
  std::vector<double> best;
  double least = kInfinity;
  // From long and from short lengths: the likelihood often has a minimum for each.
  for (const double start : {0.0, 2.5}) {
    std::vector<double> at(d + 2, start);
    at[d] = 0;
    at[d + 1] = std::log(1e-2);
    const double loss = Minimize(
        [this](std::span<const double> x, std::span<double> gradient) { return Loss(x, gradient); },
        at, low, high, {.iterations = 100, .tolerance = 1e-2});
    if (loss >= least) continue;
    least = loss;
    best = std::move(at);
  }
  Parameters fitted = {.weights = std::vector<double>(d, 1)};
  if (best.empty()) return fitted;
  for (std::size_t j = 0; j < d; ++j) fitted.weights[j] = std::exp(best[j]);
  fitted.scale = std::exp(best[d]);
  fitted.noise = std::exp(best[d + 1]) + kLeastNoise;
  return fitted;
}

bool GaussianProcess::Condition(const Parameters& parameters) {
  const std::size_t n = size();
  parameters_ = parameters;
  Matrix lower(n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k <= i; ++k) {
      double unused = 0;
      const double distance =
          Distance(x_.data() + i * dims(), x_.data() + k * dims(), parameters_.weights);
      lower(i, k) = parameters_.scale * Matern(distance, unused) + (i == k ? parameters_.noise : 0);
    }
  }
  if (!Cholesky(lower)) return false;
  alpha_ = y_;
  SolveLower(lower, alpha_);
  mean_ = RemoveMean(lower, alpha_);
  SolveUpper(lower, alpha_);
  inverse_columns_ = InverseColumns(lower);
  inverse_rows_ = Matrix(n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k <= i; ++k) inverse_rows_(i, k) = inverse_columns_(k, i);
  }
  return true;
}

GaussianProcess::Prediction GaussianProcess::Predict(std::span<const double> x,
                                                     std::span<double> mean_gradient,
                                                     std::span<double> deviation_gradient) const {
  const std::size_t n = size();
  const std::size_t d = dims();
  std::vector<double> kernel(n);
  std::vector<double> slope(n);
  Prediction result = {mean_, 0};
  for (std::size_t i = 0; i < n; ++i) {
    kernel[i] = parameters_.scale *
                Matern(Distance(x.data(), x_.data() + i * d, parameters_.weights), slope[i]);
    result.mean += kernel[i] * alpha_[i];
  }
  const auto dot = FastestLoops().dot;
  std::vector<double> solved(n);
  for (std::size_t i = 0; i < n; ++i) {
    solved[i] = dot(inverse_rows_.row(i), kernel.data(), i + 1);
  }
  const double variance = parameters_.scale - dot(solved.data(), solved.data(), n);
  result.deviation = std::sqrt(std::max(variance, 1e-12));
  if (mean_gradient.empty()) return result;

  std::fill(mean_gradient.begin(), mean_gradient.end(), 0);
  std::fill(deviation_gradient.begin(), deviation_gradient.end(), 0);
  for (std::size_t i = 0; i < n; ++i) {
    const double weight = dot(inverse_columns_.row(i) + i, solved.data() + i, n - i);
    const double common = parameters_.scale * slope[i] * 2;
    for (std::size_t j = 0; j < d; ++j) {
      if (is_category_[j]) continue;
      const double change = common * parameters_.weights[j] * (x[j] - x_[i * d + j]);
      mean_gradient[j] += alpha_[i] * change;
      deviation_gradient[j] -= weight * change / result.deviation;
    }
  }
  return result;
}

void GaussianProcess::PredictMany(std::span<const double> x, std::vector<Prediction>& out) const {
  const Loops& loops = FastestLoops();
  const std::size_t n = size();
  const std::size_t d = dims();
  const std::size_t count = x.size() / d;
  out.resize(count);
  const std::vector<double> categories(is_category_.begin(), is_category_.end());
  const MaternKernel kernel = {parameters_.weights.data(), categories.data(), d, parameters_.scale};
  std::vector<double> block(d * kBlock);
  std::vector<double> kernels(n * kBlock);
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t points = std::min(kBlock, count - begin);
    for (std::size_t p = 0; p < points; ++p) {
      for (std::size_t j = 0; j < d; ++j) block[j * kBlock + p] = x[(begin + p) * d + j];
    }
    double mean[kBlock];
    double explained[kBlock] = {};
    std::fill(std::begin(mean), std::end(mean), mean_);
    for (std::size_t i = 0; i < n; ++i) {
      double* const mine = kernels.data() + i * kBlock;
      loops.matern(kernel, x_.data() + i * d, block.data(), mine);
      for (std::size_t p = 0; p < kBlock; ++p) mean[p] += mine[p] * alpha_[i];
    }
    loops.add_squares(inverse_rows_.row(0), n, kernels.data(), explained);
    for (std::size_t p = 0; p < points; ++p) {
      const double variance = parameters_.scale - explained[p];
      out[begin + p] = {mean[p], std::sqrt(std::max(variance, 1e-12))};
    }
  }
}

// The search for the point with the largest acquisition value.
struct GpSampler::Search {
  static constexpr std::size_t kPoints = 2048;
  static constexpr std::size_t kStarts = 10;
  static constexpr int kRounds = 20;
  static constexpr double kEnumerated = 16;

  const Space& space;
  const GaussianProcess& process;
  const std::vector<bool>& is_category;
  double best;  // The smallest observation.
  double kappa;
  const std::vector<double>& avoided;  // A place whose surroundings are left out, or empty.

  // What is maximised, and its derivatives by mean and deviation.
  double Value(const GaussianProcess::Prediction& at, double& by_mean, double& by_deviation) const {
    if (kappa > 0) {
      by_mean = -1;
      by_deviation = kappa;
      return -at.mean + kappa * at.deviation;
    }
    const double z = (best - at.mean) / at.deviation;
    double slope = 0;
    const double value = std::log(at.deviation) + LogImprovement(z, slope);
    by_mean = -slope / at.deviation;
    by_deviation = (1 - slope * z) / at.deviation;
    return value;
  }

  double Value(std::span<const double> x) const {
    if (IsLeftOut(x.data())) return -kInfinity;
    double unused = 0;
    return Value(process.Predict(x, {}, {}), unused, unused);
  }

  bool IsLeftOut(const double* x) const {
    return !avoided.empty() && AreClose(x, avoided.data(), is_category);
  }

  // A coordinate as the space has it: in the middle of the value's share.
  double Snap(std::size_t i, double u) const {
    const Parameter& p = space[i];
    if (!p.is_category() && !p.is_stepped()) return u;
    return p.ToUnit(p.FromUnit(u));
  }

  // Moves the continuous coordinates uphill.
  double Climb(std::vector<double>& x) const {
    const std::size_t d = x.size();
    std::vector<double> low(d, 0);
    std::vector<double> high(d, 1);
    bool any = false;
    for (std::size_t i = 0; i < d; ++i) {
      const bool moves = !space[i].is_category() && !space[i].is_stepped();
      any = any || moves;
      if (!moves) low[i] = high[i] = x[i];
    }
    if (!any) return Value(x);
    std::vector<double> by_mean_x(d);
    std::vector<double> by_deviation_x(d);
    return -Minimize(
        [&](std::span<const double> at, std::span<double> gradient) {
          if (IsLeftOut(at.data())) return kInfinity;
          double by_mean = 0;
          double by_deviation = 0;
          const double value =
              Value(process.Predict(at, by_mean_x, by_deviation_x), by_mean, by_deviation);
          for (std::size_t i = 0; i < d; ++i) {
            gradient[i] = -(by_mean * by_mean_x[i] + by_deviation * by_deviation_x[i]);
          }
          return -value;
        },
        x, low, high, {.iterations = 50, .tolerance = 1e-3});
  }

  // Tries other values of one stepped or categorical coordinate; whether one is better.
  bool Step(std::vector<double>& x, std::size_t i, double& value) const {
    const Parameter& p = space[i];
    const double count = p.Cardinality();
    std::vector<double> tried;
    if (count <= kEnumerated) {
      for (double k = 0; k < count; ++k) {
        const double number = p.is_category() ? k : p.first() + k * p.spacing();
        tried.push_back(p.ToUnit(number));
      }
    } else {
      for (double k = 0; k < kEnumerated; ++k) tried.push_back(Snap(i, (k + 0.5) / kEnumerated));
      const double number = p.FromUnit(x[i]);
      for (const double steps : {-4, -2, -1, 1, 2, 4}) {
        const double other = number + steps * p.spacing();
        if (other >= p.first() && other <= p.last()) tried.push_back(p.ToUnit(other));
      }
    }
    const double before = x[i];
    double chosen = before;
    for (const double u : tried) {
      x[i] = u;
      const double other = Value(x);
      if (other <= value + 1e-10) continue;
      value = other;
      chosen = u;
    }
    x[i] = chosen;
    return chosen != before;
  }

  double Improve(std::vector<double>& x) const {
    double value = Climb(x);
    for (int round = 0; round < kRounds; ++round) {
      bool changed = false;
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (space[i].is_category() || space[i].is_stepped()) changed |= Step(x, i, value);
      }
      if (!changed) break;
      value = Climb(x);
    }
    return value;
  }

  std::vector<double> Run(const std::vector<double>& incumbent, std::uint64_t seed,
                          std::int64_t number) const {
    const std::size_t d = incumbent.size();
    Stream random(seed, number, HashName("gp"));
    const Sobol sobol(std::min(d, kSobolDimensions), random.Bits() | 1);
    std::vector<double> points(kPoints * d);
    for (std::size_t k = 0; k < kPoints; ++k) {
      for (std::size_t i = 0; i < d; ++i) {
        const double u = i < sobol.dimensions() ? sobol.At(k, i) : random.Uniform();
        points[k * d + i] = Snap(i, u);
      }
    }
    std::vector<GaussianProcess::Prediction> predictions;
    process.PredictMany(points, predictions);
    std::vector<double> values(kPoints);
    for (std::size_t k = 0; k < kPoints; ++k) {
      double unused = 0;
      values[k] =
          IsLeftOut(points.data() + k * d) ? -kInfinity : Value(predictions[k], unused, unused);
    }
    // The best one, others by chance in proportion to the improvement, and the incumbent.
    std::vector<std::size_t> starts = {
        static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin())};
    const double top = values[starts[0]];
    std::vector<double> shares(kPoints);
    for (std::size_t k = 0; k < kPoints; ++k) shares[k] = std::exp(values[k] - top);
    for (std::size_t s = 1; s + 1 < kStarts; ++s) {
      shares[starts.back()] = 0;
      const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
      if (!(total > 0)) break;
      double left = random.Uniform() * total;
      std::size_t k = 0;
      while (k + 1 < kPoints && left >= shares[k]) left -= shares[k++];
      starts.push_back(k);
    }
    std::vector<double> found = incumbent;
    double found_value = Improve(found);
    for (const std::size_t start : starts) {
      std::vector<double> x(points.begin() + static_cast<std::ptrdiff_t>(start * d),
                            points.begin() + static_cast<std::ptrdiff_t>((start + 1) * d));
      const double value = Improve(x);
      if (value > found_value) {
        found_value = value;
        found = std::move(x);
      }
    }
    return found;
  }
};

GpSampler::GpSampler(const Space& space, const GpOptions& options)
    : space_(space), options_(options), startup_(SobolSampler(space, options.seed)) {
  for (const Parameter& p : space_.parameters()) is_category_.push_back(p.is_category());
}

GpSampler::~GpSampler() = default;

void GpSampler::Tell(const Observation& trial) {
  if (trial.number > static_cast<std::int64_t>(trials_.size())) {
    throw Error(Code::kInternal, "a trial was told before its predecessor");
  }
  if (trial.number == static_cast<std::int64_t>(trials_.size())) {
    trials_.push_back(trial);
  } else {
    trials_[static_cast<std::size_t>(trial.number)] = trial;
  }
}

std::vector<double> GpSampler::Coordinates(const Point& point) const {
  std::vector<double> x;
  for (std::size_t i = 0; i < point.size(); ++i) {
    // What does not exist is in the middle, the same for all such trials.
    x.push_back(std::isnan(point[i]) ? 0.5 : space_[i].ToUnit(point[i]));
  }
  return x;
}

Point GpSampler::Decode(const std::vector<double>& x) const {
  Point point(x.size(), std::numeric_limits<double>::quiet_NaN());
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (space_.IsActive(point, i)) point[i] = space_[i].FromUnit(x[i]);
  }
  return point;
}

GaussianProcess::Parameters GpSampler::FittedParameters(const Known& known, Fitted& last) const {
  const auto& [x, y, pending] = known;
  // Anew when there is a twentieth more; a function of the observations alone, so that it does not
  // matter when this process began.
  std::size_t count = std::min<std::size_t>(y.size(), 20);
  while (count + (count + 19) / 20 <= y.size()) count += (count + 19) / 20;
  // Of many only some, from the best to the worst: they say as much about lengths.
  std::vector<std::size_t> chosen(count);
  std::iota(chosen.begin(), chosen.end(), 0);
  if (count > kMostFitted) {
    std::stable_sort(chosen.begin(), chosen.end(),
                     [&y](std::size_t a, std::size_t b) { return y[a] < y[b]; });
    for (std::size_t i = 0; i < kMostFitted; ++i) {
      chosen[i] = chosen[i * (count - 1) / (kMostFitted - 1)];
    }
    chosen.resize(kMostFitted);
  }
  const std::size_t d = space_.size();
  std::vector<double> some_x;
  std::vector<double> some_y;
  for (const std::size_t i : chosen) {
    some_x.insert(some_x.end(), x.begin() + static_cast<std::ptrdiff_t>(i * d),
                  x.begin() + static_cast<std::ptrdiff_t>((i + 1) * d));
    some_y.push_back(y[i]);
  }
  if (some_x == last.x && some_y == last.y) return last.parameters;
  last.x = some_x;
  last.y = some_y;
  MakeNormal(some_y);
  last.parameters = GaussianProcess(std::move(some_x), std::move(some_y), is_category_).Fit();
  return last.parameters;
}

GpSampler::Known GpSampler::Everything() const {
  double worst = -kInfinity;
  for (const Observation& trial : trials_) {
    if (trial.state == TrialState::kFinished) worst = std::max(worst, trial.loss);
  }
  Known known;
  for (const Observation& trial : trials_) {
    const std::vector<double> at = Coordinates(trial.point);
    const bool has_loss = trial.state == TrialState::kFinished ||
                          (trial.state == TrialState::kPruned && trial.step > 0);
    if (trial.state == TrialState::kRunning) {
      known.pending.insert(known.pending.end(), at.begin(), at.end());
    } else {
      known.x.insert(known.x.end(), at.begin(), at.end());
      known.y.push_back(has_loss && std::isfinite(trial.loss) ? trial.loss : worst);
    }
  }
  return known;
}

GpSampler::Known GpSampler::Outside(const Known& known, const std::vector<double>& centre) const {
  const std::size_t d = space_.size();
  const auto is_outside = [&](const double* at) {
    return !AreClose(at, centre.data(), is_category_);
  };
  Known outside;
  for (std::size_t i = 0; i < known.y.size(); ++i) {
    const double* const at = known.x.data() + i * d;
    if (!is_outside(at)) continue;
    outside.x.insert(outside.x.end(), at, at + d);
    outside.y.push_back(known.y[i]);
  }
  for (std::size_t begin = 0; begin < known.pending.size(); begin += d) {
    const double* const at = known.pending.data() + begin;
    if (is_outside(at)) outside.pending.insert(outside.pending.end(), at, at + d);
  }
  return outside;
}

GpSampler::Model GpSampler::Learn(Known known, Fitted& last) const {
  const GaussianProcess::Parameters parameters = FittedParameters(known, last);
  auto& [x, y, pending] = known;
  MakeNormal(y);
  const auto best = static_cast<std::size_t>(std::min_element(y.begin(), y.end()) - y.begin());
  const std::size_t d = space_.size();
  Model model = {nullptr,
                 {x.begin() + static_cast<std::ptrdiff_t>(best * d),
                  x.begin() + static_cast<std::ptrdiff_t>((best + 1) * d)},
                 y[best]};
  auto process = std::make_unique<GaussianProcess>(x, y, is_category_);
  if (!process->Condition(parameters)) return model;
  if (!pending.empty()) {
    std::vector<GaussianProcess::Prediction> expected;
    process->PredictMany(pending, expected);
    x.insert(x.end(), pending.begin(), pending.end());
    for (const GaussianProcess::Prediction& prediction : expected) {
      y.push_back(prediction.mean);
      // Else the same place would promise as much again.
      model.least = std::min(model.least, prediction.mean);
    }
    process = std::make_unique<GaussianProcess>(std::move(x), std::move(y), is_category_);
    if (!process->Condition(parameters)) return model;
  }
  model.process = std::move(process);
  return model;
}

Point GpSampler::Ask(std::int64_t number) {
  const auto ended = std::count_if(trials_.begin(), trials_.end(), [](const Observation& trial) {
    return trial.state == TrialState::kFinished;
  });
  if (ended < options_.startup) {
    return number == 0 ? Decode(std::vector<double>(space_.size(), 0.5)) : startup_->Ask(number);
  }
  const Known known = Everything();
  const auto run = [&](const Model& model, const std::vector<double>& avoided, double& value) {
    const Search search = {space_,      *model.process, is_category_,
                           model.least, options_.kappa, avoided};
    std::vector<double> found = search.Run(model.incumbent, options_.seed, number);
    value = search.Value(found);
    return found;
  };
  const Model model = Learn(known, everywhere_);
  if (!model.process) return startup_->Ask(number);
  double value = 0;
  const std::vector<double> found = run(model, {}, value);
  // Where little is left to gain, the lengths that fit one valley say nothing of the next, and hide
  // it: the other search has its own.
  if (options_.kappa > 0 || value > kLittle || number % 2 != 0) return Decode(found);
  Known outside = Outside(known, model.incumbent);
  if (outside.y.size() < kFewestFitted) return Decode(found);
  const Model other = Learn(std::move(outside), elsewhere_);
  return Decode(other.process ? run(other, model.incumbent, value) : found);
}

}  // namespace orca::tune
