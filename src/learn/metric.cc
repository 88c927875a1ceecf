#include "orca/learn/metric.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "learn/metric_factories.h"
#include "learn/metric_state.h"
#include "orca/core/error.h"

namespace orca::learn {
namespace {

std::unique_ptr<Metric> MakeAuc(std::string_view name, const MetricOptions& options) {
  return options.threshold_num == 0 ? MakeScoreCurve(name, options) : MakeBinnedAuc(name, options);
}

struct Entry {
  std::string_view name;
  std::unique_ptr<Metric> (*make)(std::string_view name, const MetricOptions& options);
};

// The one list of metrics.
constexpr std::array kEntries{
    Entry{"Accuracy", MakeAccuracy},
    Entry{"SparseCategoricalAccuracy", MakeAccuracy},
    Entry{"CategoricalAccuracy", MakeAccuracy},
    Entry{"BinaryAccuracy", MakeAccuracy},
    Entry{"Top5Accuracy", MakeAccuracy},
    Entry{"AUC", MakeAuc},
    Entry{"ROC", MakeScoreCurve},
    Entry{"PrecisionRecallCurve", MakeScoreCurve},
    Entry{"F1Score", MakeConfusion},
    Entry{"Precision", MakeConfusion},
    Entry{"Recall", MakeConfusion},
    Entry{"MAE", MakeElementMean},
    Entry{"MSE", MakeElementMean},
    Entry{"BinaryCrossEntropy", MakeElementMean},
    Entry{"CategoricalCrossEntropy", MakeElementMean},
    Entry{"SparseCategoricalCrossEntropy", MakeElementMean},
    Entry{"KLDivergence", MakeElementMean},
    Entry{"Poisson", MakeElementMean},
    Entry{"Mean", MakeWeightedMean},
};

}  // namespace

std::unique_ptr<Metric> Metric::Make(std::string_view name, const MetricOptions& options) {
  const auto found = std::ranges::find(kEntries, name, &Entry::name);
  if (found == kEntries.end()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("there is no metric '{}'; known: {}", name, fmt::join(Names(), ", ")));
  }
  return found->make(name, options);
}

std::vector<std::string> Metric::Names() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.emplace_back(entry.name);
  return names;
}

std::vector<std::byte> Metric::State() const {
  StateWriter writer(name_);
  Write(writer);
  return writer.Take();
}

void Metric::Merge(std::span<const std::byte> state) {
  StateReader reader(name_, state);
  MergeFrom(reader);
}

std::vector<MetricArray> Scalar(const Metric& metric, double value) {
  return {{.name = metric.name(), .values = {value}, .is_scalar = true}};
}

}  // namespace orca::learn
