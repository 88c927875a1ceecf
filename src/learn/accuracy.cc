// Accuracies: how many labels were predicted, of how many.
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "learn/batch.h"
#include "learn/metric_factories.h"
#include "learn/metric_state.h"
#include "orca/core/error.h"

namespace orca::learn {
namespace {

constexpr std::size_t kTop = 5;

struct Hits {
  std::uint64_t correct = 0;
  std::uint64_t total = 0;
};

// Counts the elements for which `is_correct` holds.
template <typename IsCorrect>
Hits Count(std::size_t labels, IsCorrect is_correct) {
  Hits hits{.correct = 0, .total = labels};
  for (std::size_t i = 0; i < labels; ++i) hits.correct += is_correct(i) ? 1 : 0;
  return hits;
}

// A double does not hold every int64.
Hits CompareInt64(const ArrayView& predictions, const ArrayView& targets) {
  const auto at = [](const ArrayView& view, std::size_t i) {
    std::int64_t value = 0;
    std::memcpy(&value, view.data.data() + i * sizeof(value), sizeof(value));
    return value;
  };
  return Count(targets.data.size() / sizeof(std::int64_t),
               [&](std::size_t i) { return at(predictions, i) == at(targets, i); });
}

Hits CompareElements(const ArrayView& predictions, const ArrayView& targets) {
  const Numbers predicted(predictions, "predictions");
  const Numbers labels(targets, "targets");
  if (IsFloating(predictions.dtype)) {
    return Count(labels.size(),
                 [&](std::size_t i) { return (predicted[i] >= 0.5 ? 1.0 : 0.0) == labels[i]; });
  }
  if (predictions.dtype == DType::kInt64 && targets.dtype == DType::kInt64)
    return CompareInt64(predictions, targets);
  return Count(labels.size(), [&](std::size_t i) { return predicted[i] == labels[i]; });
}

Hits CompareHighest(const ArrayView& predictions, const ArrayView& targets, const Labelled& match,
                    double first_label) {
  const Numbers scores(predictions, "predictions");
  const Numbers labels(targets, "targets");
  return Count(match.labels, [&](std::size_t i) {
    return static_cast<double>(ArgMax(scores.Row(i, match.classes))) + first_label == labels[i];
  });
}

Hits CountAccuracy(const ArrayView& predictions, const ArrayView& targets,
                   const MetricOptions& options) {
  const Labelled match = MatchLabels(predictions, targets);
  if (match.classes == 0) return CompareElements(predictions, targets);
  return CompareHighest(predictions, targets, match, options.zero_based_label ? 0.0 : 1.0);
}

Hits CountSparseCategorical(const ArrayView& predictions, const ArrayView& targets,
                            const MetricOptions& /*options*/) {
  return CompareHighest(predictions, targets, MatchClasses(predictions, targets), 0.0);
}

Hits CountCategorical(const ArrayView& predictions, const ArrayView& targets,
                      const MetricOptions& /*options*/) {
  CheckSameShape(predictions, targets);
  const Numbers scores(predictions, "predictions");
  const Numbers labels(targets, "targets");
  const auto classes = predictions.shape.empty()
                           ? std::size_t{1}
                           : static_cast<std::size_t>(predictions.shape.back());
  const std::size_t rows = classes == 0 ? 0 : labels.size() / classes;
  return Count(rows, [&](std::size_t i) {
    return ArgMax(scores.Row(i, classes)) == ArgMax(labels.Row(i, classes));
  });
}

Hits CountBinary(const ArrayView& predictions, const ArrayView& targets,
                 const MetricOptions& options) {
  CheckSameShape(predictions, targets);
  const Numbers scores(predictions, "predictions");
  const Numbers labels(targets, "targets");
  Hits hits = Count(labels.size(), [&](std::size_t i) {
    return (scores[i] > options.threshold ? 1.0 : 0.0) == labels[i];
  });
  // Per row, whatever the number of elements in it: so the metric was always defined.
  if (targets.shape.size() > 1) hits.total = static_cast<std::uint64_t>(targets.shape[0]);
  return hits;
}

// Whether fewer than five classes come before `label`; of equal scores the first comes first.
bool IsAmongTop(std::span<const double> scores, double label) {
  if (!(label >= 0 && label < static_cast<double>(scores.size()))) return false;
  const auto index = static_cast<std::size_t>(label);
  if (static_cast<double>(index) != label) return false;
  const double score = scores[index];
  std::size_t before = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const bool higher = scores[i] > score || (std::isnan(scores[i]) && !std::isnan(score));
    const bool equal = scores[i] == score || (std::isnan(scores[i]) && std::isnan(score));
    before += higher || (equal && i < index) ? 1 : 0;
  }
  return before < kTop;
}

Hits CountTop5(const ArrayView& predictions, const ArrayView& targets,
               const MetricOptions& /*options*/) {
  const Labelled match = MatchClasses(predictions, targets);
  if (match.classes < kTop) {
    throw Error(Code::kInvalidArgument,
                fmt::format("preds of shape {} have the scores of {} classes; Top5Accuracy needs "
                            "at least {}",
                            ShapeText(predictions.shape), match.classes, kTop));
  }
  const Numbers scores(predictions, "predictions");
  const Numbers labels(targets, "targets");
  return Count(match.labels,
               [&](std::size_t i) { return IsAmongTop(scores.Row(i, match.classes), labels[i]); });
}

using CountHits = Hits (*)(const ArrayView& predictions, const ArrayView& targets,
                           const MetricOptions& options);

CountHits RuleOf(std::string_view name) {
  if (name == "SparseCategoricalAccuracy") return CountSparseCategorical;
  if (name == "CategoricalAccuracy") return CountCategorical;
  if (name == "BinaryAccuracy") return CountBinary;
  if (name == "Top5Accuracy") return CountTop5;
  return CountAccuracy;
}

class AccuracyMetric : public Metric {
 public:
  AccuracyMetric(std::string_view name, const MetricOptions& options)
      : Metric(name), rule_(RuleOf(name)), options_(options) {}

  void Update(const ArrayView& predictions, const ArrayView& targets) override {
    const Hits hits = rule_(predictions, targets, options_);
    hits_.correct += hits.correct;
    hits_.total += hits.total;
  }

  std::vector<MetricArray> Value() const override {
    return Scalar(*this, static_cast<double>(hits_.correct) / static_cast<double>(hits_.total));
  }

 private:
  void Write(StateWriter& writer) const override {
    writer.Put(hits_.correct);
    writer.Put(hits_.total);
  }

  void MergeFrom(StateReader& reader) override {
    Hits sum;
    sum.correct = AddCounts(hits_.correct, reader.Get<std::uint64_t>(), reader);
    sum.total = AddCounts(hits_.total, reader.Get<std::uint64_t>(), reader);
    reader.Finish();
    hits_ = sum;
  }

  CountHits rule_;
  MetricOptions options_;
  Hits hits_;
};

}  // namespace

std::unique_ptr<Metric> MakeAccuracy(std::string_view name, const MetricOptions& options) {
  return std::make_unique<AccuracyMetric>(name, options);
}

}  // namespace orca::learn
