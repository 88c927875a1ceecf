// The area under the ROC curve from counts at fixed thresholds: its state does not grow.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "learn/batch.h"
#include "learn/metric_factories.h"
#include "learn/metric_state.h"
#include "orca/core/error.h"

namespace orca::learn {
namespace {

constexpr int kMaxThresholds = 1 << 20;

// The BigDL engine's: from just below 0, in even steps from the second on, to just above 1.
std::vector<double> Thresholds(int count) {
  constexpr float kEpsilon = 1e-7F;
  std::vector<double> thresholds{-kEpsilon};
  for (int i = 1; i + 1 < count; ++i) {
    thresholds.push_back(
        static_cast<double>(static_cast<float>(i + 1) / static_cast<float>(count - 1)));
  }
  thresholds.push_back(1.0F + kEpsilon);
  return thresholds;
}

class BinnedAuc : public Metric {
 public:
  BinnedAuc(std::string_view name, int thresholds)
      : Metric(name), thresholds_(Thresholds(thresholds)) {}

  void Update(const ArrayView& predictions, const ArrayView& targets) override {
    const std::size_t columns = ScoreColumns(predictions, targets);
    const Numbers scores(predictions, "predictions");
    const Numbers labels(targets, "targets");
    if (labels.size() == 0) return;
    if (columns_ != 0 && columns != columns_) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("preds of shape {} have {} scores a row, those before had {}",
                              ShapeText(predictions.shape), columns, columns_));
    }
    for (std::size_t i = 0; i < labels.size(); ++i) (void)IsPositive(labels, i);
    Begin(columns);
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const std::size_t cell = i % columns_ * cells() + Reached(scores[i]);
      ++(IsPositive(labels, i) ? positives_ : negatives_)[cell];
    }
  }

  std::vector<MetricArray> Value() const override {
    double sum = 0;
    for (std::size_t c = 0; c < columns_; ++c) sum += Area(c);
    return Scalar(*this, sum / static_cast<double>(columns_));
  }

 private:
  std::size_t cells() const { return thresholds_.size() + 1; }

  // As many thresholds are not above the score; a NaN reaches none.
  std::size_t Reached(double score) const {
    if (std::isnan(score)) return 0;
    const auto above = std::ranges::upper_bound(thresholds_, score);
    return static_cast<std::size_t>(above - thresholds_.begin());
  }

  void Begin(std::size_t columns) {
    if (columns_ != 0) return;
    positives_.resize(columns * cells());
    negatives_.resize(columns * cells());
    columns_ = columns;
  }

  double Area(std::size_t column) const {
    constexpr double kEpsilon = 1e-6;
    const auto of_column = [&](const std::vector<std::uint64_t>& counts) {
      return std::span(counts).subspan(column * cells(), cells());
    };
    const auto positives = of_column(positives_);
    const auto negatives = of_column(negatives_);
    const auto sum = [](std::span<const std::uint64_t> counts) {
      double total = 0;
      for (const std::uint64_t count : counts) total += static_cast<double>(count);
      return total;
    };
    const double all_positives = sum(positives);
    const double all_negatives = sum(negatives);
    // From the highest threshold down, a trapezium between each two.
    double accepted_positives = 0;
    double accepted_negatives = 0;
    double area = 0;
    double last_tpr = 0;
    double last_fpr = 0;
    for (std::size_t j = thresholds_.size(); j-- > 0;) {
      accepted_positives += static_cast<double>(positives[j + 1]);
      accepted_negatives += static_cast<double>(negatives[j + 1]);
      const double tpr = (accepted_positives + kEpsilon) / (all_positives + kEpsilon);
      const double fpr = accepted_negatives / (all_negatives + kEpsilon);
      if (j + 1 < thresholds_.size()) area += (tpr + last_tpr) * (fpr - last_fpr) / 2;
      last_tpr = tpr;
      last_fpr = fpr;
    }
    return area;
  }

  void Write(StateWriter& writer) const override {
    writer.Put<std::uint64_t>(thresholds_.size());
    writer.Put<std::uint64_t>(columns_);
    writer.PutAll(std::span<const std::uint64_t>(positives_));
    writer.PutAll(std::span<const std::uint64_t>(negatives_));
  }

  void MergeFrom(StateReader& reader) override {
    const auto thresholds = reader.Get<std::uint64_t>();
    const auto columns = reader.Get<std::uint64_t>();
    if (thresholds != thresholds_.size()) {
      reader.Refuse(fmt::format("they have {} thresholds, this metric has {}", thresholds,
                                thresholds_.size()));
    }
    const std::size_t column_bytes = 2 * cells() * sizeof(std::uint64_t);
    if (reader.left() % column_bytes != 0 || reader.left() / column_bytes != columns)
      reader.Refuse("their counts do not fit their thresholds");
    if (columns == 0) return;
    if (columns_ != 0 && columns != columns_) {
      reader.Refuse(
          fmt::format("they have {} scores a row, those before had {}", columns, columns_));
    }
    const auto read = [&](std::vector<std::uint64_t> sum) {
      sum.resize(columns * cells());
      for (std::uint64_t& count : sum)
        count = AddCounts(count, reader.Get<std::uint64_t>(), reader);
      return sum;
    };
    auto positives = read(positives_);
    auto negatives = read(negatives_);
    positives_ = std::move(positives);
    negatives_ = std::move(negatives);
    columns_ = columns;
  }

  std::vector<double> thresholds_;
  std::size_t columns_ = 0;  // scores a row; 0: there is no row yet
  // For each column and number of thresholds reached, the labels 1 and the labels 0.
  std::vector<std::uint64_t> positives_;
  std::vector<std::uint64_t> negatives_;
};

}  // namespace

std::unique_ptr<Metric> MakeBinnedAuc(std::string_view name, const MetricOptions& options) {
  if (options.threshold_num < 2 || options.threshold_num > kMaxThresholds) {
    throw Error(Code::kInvalidArgument,
                fmt::format("threshold_num {} is not between 2 and {}; give 0 for the exact area",
                            options.threshold_num, kMaxThresholds));
  }
  return std::make_unique<BinnedAuc>(name, options.threshold_num);
}

}  // namespace orca::learn
