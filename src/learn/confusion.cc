// Precision, recall and their harmonic mean, from counts of right and wrong decisions.
#include <limits>

#include "learn/batch.h"
#include "learn/metric_factories.h"
#include "learn/metric_state.h"

namespace orca::learn {
namespace {

struct Decisions {
  std::uint64_t true_positives = 0;
  std::uint64_t false_positives = 0;
  std::uint64_t false_negatives = 0;
  std::uint64_t total = 0;
};

double Ratio(double part, double whole) { return whole == 0 ? 0.0 : part / whole; }

// Scores of yes or no: what counts is the class 1.
Decisions DecideBinary(const ArrayView& predictions, const ArrayView& targets) {
  const Numbers scores(predictions, "predictions");
  const Numbers labels(targets, "targets");
  Decisions made{.total = labels.size()};
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const bool positive = IsPositive(labels, i);
    const bool predicted = scores[i] >= 0.5;
    made.true_positives += predicted && positive ? 1 : 0;
    made.false_positives += predicted && !positive ? 1 : 0;
    made.false_negatives += !predicted && positive ? 1 : 0;
  }
  return made;
}

// Several classes, counted together: a wrong class is one positive too many and one too few.
Decisions DecideClasses(const ArrayView& predictions, const ArrayView& targets,
                        const Labelled& match) {
  const Numbers scores(predictions, "predictions");
  const Numbers labels(targets, "targets");
  Decisions made{.total = match.labels};
  for (std::size_t i = 0; i < match.labels; ++i) {
    const double predicted =
        match.classes == 0 ? scores[i] : static_cast<double>(ArgMax(scores.Row(i, match.classes)));
    (predicted == labels[i] ? made.true_positives : made.false_positives) += 1;
  }
  made.false_negatives = made.false_positives;
  return made;
}

class ConfusionMetric : public Metric {
 public:
  explicit ConfusionMetric(std::string_view name) : Metric(name) {}

  void Update(const ArrayView& predictions, const ArrayView& targets) override {
    const Labelled match = MatchLabels(predictions, targets);
    const bool binary =
        match.classes == 0 && (IsFloating(predictions.dtype) || predictions.dtype == DType::kBool);
    const Decisions made =
        binary ? DecideBinary(predictions, targets) : DecideClasses(predictions, targets, match);
    made_.true_positives += made.true_positives;
    made_.false_positives += made.false_positives;
    made_.false_negatives += made.false_negatives;
    made_.total += made.total;
  }

  std::vector<MetricArray> Value() const override {
    const auto right = static_cast<double>(made_.true_positives);
    const auto wrong = static_cast<double>(made_.false_positives);
    const auto missed = static_cast<double>(made_.false_negatives);
    if (made_.total == 0) return Scalar(*this, std::numeric_limits<double>::quiet_NaN());
    if (name() == "Precision") return Scalar(*this, Ratio(right, right + wrong));
    if (name() == "Recall") return Scalar(*this, Ratio(right, right + missed));
    return Scalar(*this, Ratio(2 * right, 2 * right + wrong + missed));
  }

 private:
  void Write(StateWriter& writer) const override {
    writer.Put(made_.true_positives);
    writer.Put(made_.false_positives);
    writer.Put(made_.false_negatives);
    writer.Put(made_.total);
  }

  void MergeFrom(StateReader& reader) override {
    Decisions sum = made_;
    for (std::uint64_t* const count :
         {&sum.true_positives, &sum.false_positives, &sum.false_negatives, &sum.total}) {
      *count = AddCounts(*count, reader.Get<std::uint64_t>(), reader);
    }
    reader.Finish();
    made_ = sum;
  }

  Decisions made_;
};

}  // namespace

std::unique_ptr<Metric> MakeConfusion(std::string_view name, const MetricOptions& /*options*/) {
  return std::make_unique<ConfusionMetric>(name);
}

}  // namespace orca::learn
