// Means of a function of prediction and target, over elements or rows.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "learn/batch.h"
#include "learn/exact_sum.h"
#include "learn/metric_factories.h"
#include "learn/metric_state.h"
#include "orca/core/error.h"

namespace orca::learn {
namespace {

constexpr double kEpsilon = 1e-7;  // keeps logarithms finite

double ClippedProbability(double p) { return std::clamp(p, kEpsilon, 1 - kEpsilon); }

double AbsoluteError(double p, double t) { return std::abs(p - t); }
double SquaredError(double p, double t) { return (p - t) * (p - t); }
double BinaryCrossEntropy(double p, double t) {
  const double clipped = ClippedProbability(p);
  return -t * std::log(clipped) - (1 - t) * std::log1p(-clipped);
}
double CategoricalCrossEntropy(double p, double t) { return -t * std::log(ClippedProbability(p)); }
double KullbackLeibler(double p, double t) {
  return t == 0 && !std::isnan(p) ? 0.0 : t * std::log(t / p + kEpsilon);
}
double Poisson(double p, double t) { return p - t * std::log(p + kEpsilon); }

struct Rule {
  std::string_view name;
  double (*measure)(double prediction, double target);
  bool per_row;  // the last dimension is summed, not averaged
};
constexpr Rule kRules[] = {{"MAE", AbsoluteError, false},
                           {"MSE", SquaredError, false},
                           {"BinaryCrossEntropy", BinaryCrossEntropy, false},
                           {"CategoricalCrossEntropy", CategoricalCrossEntropy, true},
                           {"KLDivergence", KullbackLeibler, true},
                           {"Poisson", Poisson, false}};

/// The sum of what was measured, and how often.
class ElementMean : public Metric {
 public:
  std::vector<MetricArray> Value() const override {
    return Scalar(*this, sum_.Value() / static_cast<double>(count_));
  }

 protected:
  explicit ElementMean(std::string_view name) : Metric(name) {}

  void Add(double measured) { sum_.Add(measured); }
  void AddAll(std::span<const double> measured) { sum_.AddAll(measured); }
  void Count(std::uint64_t items) { count_ += items; }

 private:
  void Write(StateWriter& writer) const override {
    sum_.Write(writer);
    writer.Put(count_);
  }

  void MergeFrom(StateReader& reader) override {
    const ExactSum sum = ExactSum::Read(reader);
    const std::uint64_t count = AddCounts(count_, reader.Get<std::uint64_t>(), reader);
    reader.Finish();
    sum_.Add(sum);
    count_ = count;
  }

  ExactSum sum_;
  std::uint64_t count_ = 0;
};

class RuleMean : public ElementMean {
 public:
  explicit RuleMean(const Rule& rule) : ElementMean(rule.name), rule_(rule) {}

  void Update(const ArrayView& predictions, const ArrayView& targets) override {
    CheckSameShape(predictions, targets);
    const Numbers predicted(predictions, "predictions");
    const Numbers wanted(targets, "targets");
    std::array<double, kBuffered> measured{};
    for (std::size_t begin = 0; begin < wanted.size(); begin += kBuffered) {
      const std::size_t count = std::min(kBuffered, wanted.size() - begin);
      for (std::size_t i = 0; i < count; ++i)
        measured[i] = rule_.measure(predicted[begin + i], wanted[begin + i]);
      AddAll(std::span(measured).first(count));
    }
    const bool has_rows = rule_.per_row && targets.shape.size() > 1 && wanted.size() > 0;
    Count(has_rows ? wanted.size() / static_cast<std::size_t>(targets.shape.back())
                   : wanted.size());
  }

 private:
  static constexpr std::size_t kBuffered = 1023;  // what ExactSum adds at a time

  const Rule& rule_;
};

class SparseCrossEntropy : public ElementMean {
 public:
  explicit SparseCrossEntropy(std::string_view name) : ElementMean(name) {}

  void Update(const ArrayView& predictions, const ArrayView& targets) override {
    const Labelled match = MatchClasses(predictions, targets);
    const Numbers scores(predictions, "predictions");
    const Numbers labels(targets, "targets");
    for (std::size_t i = 0; i < match.labels; ++i) CheckLabel(i, labels[i], match.classes);
    for (std::size_t i = 0; i < match.labels; ++i) {
      const double p = scores.Row(i, match.classes)[static_cast<std::size_t>(labels[i])];
      Add(-std::log(ClippedProbability(p)));
    }
    Count(match.labels);
  }

 private:
  static void CheckLabel(std::size_t i, double label, std::size_t classes) {
    if (label >= 0 && label < static_cast<double>(classes) && label == std::floor(label)) return;
    throw Error(Code::kInvalidArgument,
                fmt::format("target {} is {}; give a class from 0 to {}, as preds have the scores "
                            "of {} classes",
                            i, label, classes - 1, classes));
  }
};

}  // namespace

std::unique_ptr<Metric> MakeElementMean(std::string_view name, const MetricOptions& /*options*/) {
  if (name == "SparseCategoricalCrossEntropy") return std::make_unique<SparseCrossEntropy>(name);
  return std::make_unique<RuleMean>(*std::ranges::find(kRules, name, &Rule::name));
}

}  // namespace orca::learn
