// Curves over all thresholds of a score, and the area under one: the scores are kept.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "learn/batch.h"
#include "learn/exact_sum.h"
#include "learn/metric_factories.h"
#include "learn/metric_state.h"
#include "orca/core/error.h"

namespace orca::learn {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Scored {
  double score = 0;
  bool positive = false;
};

// What a threshold accepts: all scores that are not below it.
struct Step {
  double threshold = 0;
  std::uint64_t true_positives = 0;
  std::uint64_t false_positives = 0;
};

// One step for each score that occurs, from the highest down.
std::vector<Step> Descend(std::vector<Scored> rows) {
  std::ranges::sort(rows, std::greater<>{}, &Scored::score);
  std::vector<Step> steps;
  Step step;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    (rows[i].positive ? step.true_positives : step.false_positives) += 1;
    step.threshold = rows[i].score;
    if (i + 1 == rows.size() || rows[i + 1].score != rows[i].score) steps.push_back(step);
  }
  return steps;
}

// The probability that a positive has a higher score than a negative; a tie counts half.
double Area(const std::vector<Step>& steps) {
  ExactSum doubled;
  Step last;
  for (const Step& step : steps) {
    doubled.AddProduct(static_cast<double>(step.false_positives - last.false_positives),
                       static_cast<double>(step.true_positives + last.true_positives));
    last = step;
  }
  const auto positives = static_cast<double>(last.true_positives);
  const auto negatives = static_cast<double>(last.false_positives);
  return doubled.Value() / (2 * positives * negatives);  // NaN when a class is missing
}

double Ratio(std::uint64_t part, std::uint64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

std::vector<MetricArray> RocCurve(const std::vector<Step>& steps) {
  const Step all = steps.empty() ? Step{} : steps.back();
  MetricArray fpr{.name = "fpr", .values = {Ratio(0, all.false_positives)}, .is_scalar = false};
  MetricArray tpr{.name = "tpr", .values = {Ratio(0, all.true_positives)}, .is_scalar = false};
  MetricArray thresholds{.name = "thresholds",
                         .values = {std::numeric_limits<double>::infinity()},
                         .is_scalar = false};
  for (const Step& step : steps) {
    fpr.values.push_back(Ratio(step.false_positives, all.false_positives));
    tpr.values.push_back(Ratio(step.true_positives, all.true_positives));
    thresholds.values.push_back(step.threshold);
  }
  return {std::move(fpr), std::move(tpr), std::move(thresholds)};
}

std::vector<MetricArray> PrecisionRecallCurve(const std::vector<Step>& steps) {
  const std::uint64_t positives = steps.empty() ? 0 : steps.back().true_positives;
  MetricArray precision{.name = "precision", .values = {}, .is_scalar = false};
  MetricArray recall{.name = "recall", .values = {}, .is_scalar = false};
  MetricArray thresholds{.name = "thresholds", .values = {}, .is_scalar = false};
  std::for_each(steps.rbegin(), steps.rend(), [&](const Step& step) {
    precision.values.push_back(
        Ratio(step.true_positives, step.true_positives + step.false_positives));
    recall.values.push_back(positives == 0 ? 1.0 : Ratio(step.true_positives, positives));
    thresholds.values.push_back(step.threshold);
  });
  precision.values.push_back(1.0);  // where nothing is accepted
  recall.values.push_back(0.0);
  return {std::move(precision), std::move(recall), std::move(thresholds)};
}

class ScoreCurve : public Metric {
 public:
  explicit ScoreCurve(std::string_view name) : Metric(name) {}

  void Update(const ArrayView& predictions, const ArrayView& targets) override {
    const std::size_t columns = ScoreColumns(predictions, targets);
    const Numbers scores(predictions, "predictions");
    const Numbers labels(targets, "targets");
    if (labels.size() == 0) return;
    CheckColumns(columns, predictions);
    std::vector<std::uint8_t> positive(labels.size());
    for (std::size_t i = 0; i < labels.size(); ++i) positive[i] = IsPositive(labels, i) ? 1 : 0;
    Append(columns, scores.Row(0, scores.size()), positive);
  }

  std::vector<MetricArray> Value() const override {
    if (name() == "AUC") return Scalar(*this, MeanArea());
    const auto missing = std::ranges::count_if(scores_, [](double s) { return std::isnan(s); });
    if (missing > 0) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("{} of {} predictions are NaN, and have no place on a curve; look "
                              "for the NaN in the model's output",
                              missing, scores_.size()));
    }
    const std::vector<Step> steps = Descend(Column(0));
    return name() == "ROC" ? RocCurve(steps) : PrecisionRecallCurve(steps);
  }

 private:
  void CheckColumns(std::size_t columns, const ArrayView& predictions) const {
    if (columns != 1 && name() != "AUC") {
      throw Error(Code::kInvalidArgument,
                  fmt::format("preds of shape {} have {} scores a row; {} takes one, that of the "
                              "positive class",
                              ShapeText(predictions.shape), columns, name()));
    }
    if (columns_ != 0 && columns != columns_) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("preds of shape {} have {} scores a row, those before had {}",
                              ShapeText(predictions.shape), columns, columns_));
    }
  }

  void Append(std::size_t columns, std::span<const double> scores,
              std::span<const std::uint8_t> labels) {
    // Whatever runs out of memory does so before anything changes.
    scores_.reserve(std::max(scores_.capacity(), Grown(scores_.size(), scores.size())));
    labels_.reserve(std::max(labels_.capacity(), Grown(labels_.size(), labels.size())));
    scores_.insert(scores_.end(), scores.begin(), scores.end());
    labels_.insert(labels_.end(), labels.begin(), labels.end());
    columns_ = columns;
  }

  // Doubles, so that many small batches do not copy what is there each time.
  static std::size_t Grown(std::size_t held, std::size_t added) {
    return held + std::max(held, added);
  }

  std::vector<Scored> Column(std::size_t column) const {
    std::vector<Scored> rows;
    if (columns_ > 0) rows.reserve(scores_.size() / columns_);
    for (std::size_t i = column; i < scores_.size(); i += columns_)
      rows.push_back({.score = scores_[i], .positive = labels_[i] != 0});
    return rows;
  }

  double MeanArea() const {
    if (std::ranges::any_of(scores_, [](double s) { return std::isnan(s); })) return kNaN;
    ExactSum sum;
    for (std::size_t c = 0; c < columns_; ++c) sum.Add(Area(Descend(Column(c))));
    return sum.Value() / static_cast<double>(columns_);
  }

  void Write(StateWriter& writer) const override {
    writer.Put<std::uint64_t>(columns_);
    writer.Put<std::uint64_t>(scores_.size());
    writer.PutAll(std::span<const double>(scores_));
    writer.PutAll(std::span<const std::uint8_t>(labels_));
  }

  void MergeFrom(StateReader& reader) override {
    const auto columns = reader.Get<std::uint64_t>();
    const auto count = reader.Get<std::uint64_t>();
    if (count > reader.left() / (sizeof(double) + 1)) reader.Refuse("it is cut off");
    if (columns == 0 ? count != 0 : (count == 0 || count % columns != 0))
      reader.Refuse("its scores do not fill its rows");
    std::vector<double> scores(count);
    std::vector<std::uint8_t> labels(count);
    reader.GetAll(std::span(scores));
    reader.GetAll(std::span(labels));
    reader.Finish();
    if (std::ranges::any_of(labels, [](std::uint8_t label) { return label > 1; }))
      reader.Refuse("a label is neither 0 nor 1");
    if (columns > 1 && name() != "AUC") reader.Refuse("it has more than one score a row");
    if (count == 0) return;
    if (columns_ != 0 && columns != columns_) {
      reader.Refuse(
          fmt::format("they have {} scores a row, those before had {}", columns, columns_));
    }
    Append(columns, scores, labels);
  }

  std::size_t columns_ = 0;  // scores a row; 0: there is no row yet
  std::vector<double> scores_;
  std::vector<std::uint8_t> labels_;  // of each score: 0 or 1
};

}  // namespace

std::unique_ptr<Metric> MakeScoreCurve(std::string_view name, const MetricOptions& /*options*/) {
  return std::make_unique<ScoreCurve>(name);
}

}  // namespace orca::learn
