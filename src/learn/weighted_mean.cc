// The mean of values that do not all count the same, such as the losses of batches.
#include <fmt/format.h>

#include "learn/batch.h"
#include "learn/exact_sum.h"
#include "learn/metric_factories.h"
#include "learn/metric_state.h"
#include "orca/core/error.h"

namespace orca::learn {
namespace {

class WeightedMean : public Metric {
 public:
  explicit WeightedMean(std::string_view name) : Metric(name) {}

  /// Values, and as many weights.
  void Update(const ArrayView& predictions, const ArrayView& targets) override {
    CheckSameShape(predictions, targets);
    const Numbers values(predictions, "values");
    const Numbers weights(targets, "weights");
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] >= 0 && weights[i] <= kLargestWeight) continue;
      throw Error(Code::kInvalidArgument, fmt::format("weight {} is {}; give 0 or more, and no "
                                                      "more than {}",
                                                      i, weights[i], kLargestWeight));
    }
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] == 0) continue;  // the loss of an empty batch is NaN
      sum_.AddProduct(values[i], weights[i]);
      weight_.Add(weights[i]);
    }
  }

  std::vector<MetricArray> Value() const override {
    return Scalar(*this, sum_.Value() / weight_.Value());
  }

 private:
  // An infinite weight would leave no mean.
  static constexpr double kLargestWeight = 1e300;

  void Write(StateWriter& writer) const override {
    sum_.Write(writer);
    weight_.Write(writer);
  }

  void MergeFrom(StateReader& reader) override {
    const ExactSum sum = ExactSum::Read(reader);
    const ExactSum weight = ExactSum::Read(reader);
    reader.Finish();
    sum_.Add(sum);
    weight_.Add(weight);
  }

  ExactSum sum_;     // of value times weight
  ExactSum weight_;  // of the weights
};

}  // namespace

std::unique_ptr<Metric> MakeWeightedMean(std::string_view name, const MetricOptions& /*options*/) {
  return std::make_unique<WeightedMean>(name);
}

}  // namespace orca::learn
