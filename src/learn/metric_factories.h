// Who makes which metric.
#pragma once

#include <memory>
#include <string_view>

#include "orca/learn/metric.h"

namespace orca::learn {

/// Accuracy, SparseCategoricalAccuracy, CategoricalAccuracy, BinaryAccuracy, Top5Accuracy
std::unique_ptr<Metric> MakeAccuracy(std::string_view name, const MetricOptions& options);
/// MAE, MSE, BinaryCrossEntropy, CategoricalCrossEntropy, SparseCategoricalCrossEntropy,
/// KLDivergence, Poisson
std::unique_ptr<Metric> MakeElementMean(std::string_view name, const MetricOptions& options);
/// Mean
std::unique_ptr<Metric> MakeWeightedMean(std::string_view name, const MetricOptions& options);
/// F1Score, Precision, Recall
std::unique_ptr<Metric> MakeConfusion(std::string_view name, const MetricOptions& options);
/// ROC, PrecisionRecallCurve, AUC of all scores
std::unique_ptr<Metric> MakeScoreCurve(std::string_view name, const MetricOptions& options);
/// AUC of counts at `options.threshold_num` thresholds
std::unique_ptr<Metric> MakeBinnedAuc(std::string_view name, const MetricOptions& options);

/// A value that is a single number.
std::vector<MetricArray> Scalar(const Metric& metric, double value);

}  // namespace orca::learn
