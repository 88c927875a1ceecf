// Every metric against values that were worked out by hand.
#include "orca/learn/metric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "learn/array.h"
#include "net/expect_error.h"

namespace orca::learn {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double ValueOf(const Metric& metric) {
  const auto value = metric.Value();
  EXPECT_EQ(value.size(), 1U);
  EXPECT_TRUE(value[0].is_scalar);
  EXPECT_EQ(value[0].name, metric.name());
  return value[0].values.at(0);
}

double Measure(const std::string& name, const Array& predictions, const Array& targets,
               const MetricOptions& options = {}) {
  const auto metric = Metric::Make(name, options);
  metric->Update(predictions.view(), targets.view());
  return ValueOf(*metric);
}

Error Refused(const std::string& name, const Array& predictions, const Array& targets) {
  return ErrorOf([&] { Measure(name, predictions, targets); });
}

TEST(MetricTest, AnUnknownNameIsToldWithTheKnownOnes) {
  EXPECT_THAT(
      ErrorOf([] { Metric::Make("accuracy"); }),
      IsError(Code::kInvalidArgument,
              AllOf(HasSubstr("'accuracy'"), HasSubstr("Accuracy, Sparse"), HasSubstr("Mean"))));
  for (const std::string& name : Metric::Names()) EXPECT_EQ(Metric::Make(name)->name(), name);
}

TEST(MetricTest, AMetricOfNothingIsNaN) {
  for (const std::string& name : Metric::Names()) {
    const auto metric = Metric::Make(name);
    if (name == "ROC" || name == "PrecisionRecallCurve") continue;
    EXPECT_TRUE(std::isnan(ValueOf(*metric))) << name;
  }
}

TEST(AccuracyTest, LabelsAreCompared) {
  EXPECT_EQ(Measure("Accuracy", Labels({4}, {0, 2, 3, 4}), Labels({4}, {1, 2, 3, 4})), 0.75);
  EXPECT_EQ(Measure("Accuracy", Make<std::int8_t>({4}, {0, 2, 3, 4}), Doubles({4}, {1, 2, 3, 4})),
            0.75);
  const std::int64_t large = (std::int64_t{1} << 53) + 1;  // which no double holds
  EXPECT_EQ(Measure("Accuracy", Labels({2}, {large, 1}), Labels({2}, {large - 1, 1})), 0.5);
}

TEST(AccuracyTest, ProbabilitiesMeanOneFromAHalfOn) {
  EXPECT_EQ(Measure("Accuracy", Doubles({4}, {0.5, 0.49, 0.9, 0.1}), Labels({4}, {1, 1, 0, 0})),
            0.5);
  EXPECT_EQ(Measure("Accuracy", Make<float>({2, 1}, {0.7F, 0.2F}), Labels({2}, {1, 0})), 1.0);
}

TEST(AccuracyTest, OneMoreDimensionHoldsScoresOfClasses) {
  const Array scores = Doubles({2, 3}, {0.1, 0.9, 0.8, 5, 5, 1});
  EXPECT_EQ(Measure("Accuracy", scores, Labels({2}, {1, 0})), 1.0);
  EXPECT_EQ(Measure("Accuracy", scores, Labels({2, 1}, {1, 1})), 0.5);
  EXPECT_EQ(Measure("Accuracy", scores, Labels({2}, {2, 1}), {.zero_based_label = false}), 1.0);
  EXPECT_EQ(Measure("Accuracy", Doubles({1, 2, 2}, {1, 0, 0, 1}), Labels({1, 2}, {0, 0})), 0.5);
}

TEST(AccuracyTest, ANaNIsTheHighestScoreAndNoProbability) {
  EXPECT_EQ(Measure("Accuracy", Doubles({1, 3}, {1, kNaN, 2}), Labels({1}, {1})), 1.0);
  EXPECT_EQ(Measure("Accuracy", Doubles({2}, {kNaN, kNaN}), Labels({2}, {0, 1})), 0.5);
}

TEST(AccuracyTest, SparseTakesIntegersAndCategoricalTakesRows) {
  const Array scores = Doubles({2, 3}, {0.1, 0.9, 0.8, 0.05, 0.95, 0});
  EXPECT_EQ(Measure("SparseCategoricalAccuracy", scores, Labels({2, 1}, {2, 1})), 0.5);
  EXPECT_EQ(Measure("SparseCategoricalAccuracy", scores, Labels({2}, {2, 0})), 0.0);
  EXPECT_EQ(Measure("SparseCategoricalAccuracy", scores, Make<float>({2}, {1, 1})), 1.0);
  EXPECT_EQ(Measure("CategoricalAccuracy", scores, Labels({2, 3}, {0, 0, 1, 0, 1, 0})), 0.5);
}

TEST(AccuracyTest, BinaryTakesScoresAboveTheThresholdPerRow) {
  const Array scores = Doubles({4}, {0.98, 0.5, 0, 0.6});
  EXPECT_EQ(Measure("BinaryAccuracy", scores, Labels({4}, {1, 1, 0, 0})), 0.5);
  EXPECT_EQ(Measure("BinaryAccuracy", scores, Labels({4}, {1, 0, 0, 0}), {.threshold = 0.7}), 1.0);
  EXPECT_EQ(Measure("BinaryAccuracy", Doubles({2, 2}, {1, 1, 0, 1}), Labels({2, 2}, {1, 1, 0, 0})),
            1.5);
}

TEST(AccuracyTest, Top5CountsLabelsAmongTheFiveHighest) {
  const Array scores =
      Doubles({2, 6}, {0.1, 0.9, 0.8, 0.4, 0.5, 0.2, 0.05, 0.95, 0, 0.4, 0.5, 0.2});
  EXPECT_EQ(Measure("Top5Accuracy", scores, Labels({2}, {2, 2})), 0.5);
  EXPECT_EQ(Measure("Top5Accuracy", scores, Labels({2, 1}, {2, 1})), 1.0);
  // Of equal scores the first five count.
  const Array equal = Doubles({2, 7}, std::vector<double>(14, 1.0));
  EXPECT_EQ(Measure("Top5Accuracy", equal, Labels({2}, {4, 5})), 0.5);
  EXPECT_EQ(Measure("Top5Accuracy", equal, Labels({2}, {-1, 7})), 0.0);
  EXPECT_THAT(Refused("Top5Accuracy", Doubles({1, 4}, {1, 2, 3, 4}), Labels({1}, {0})),
              IsError(Code::kInvalidArgument, AllOf(HasSubstr("(1, 4)"), HasSubstr("at least 5"))));
}

TEST(ElementMeanTest, ErrorsAreMeansOverElements) {
  const Array predictions = Labels({2, 2}, {1, -2, 1, 1});
  const Array targets = Labels({2, 2}, {0, 1, 0, 1});
  EXPECT_EQ(Measure("MAE", predictions, targets), 1.25);
  EXPECT_EQ(Measure("MSE", predictions, targets), 2.75);
  EXPECT_TRUE(std::isnan(Measure("MSE", Doubles({1}, {kNaN}), Doubles({1}, {1}))));
  EXPECT_EQ(Measure("MAE", Doubles({2}, {kInfinity, 1}), Doubles({2}, {0, 0})), kInfinity);
}

TEST(ElementMeanTest, CrossEntropiesClipProbabilities) {
  EXPECT_NEAR(Measure("BinaryCrossEntropy", Doubles({2, 2}, {0.6, 0.4, 0.4, 0.6}),
                      Labels({2, 2}, {0, 1, 0, 0})),
              (-std::log(0.4) * 3 - std::log(0.6)) / 4, 1e-15);
  EXPECT_NEAR(Measure("BinaryCrossEntropy", Doubles({2}, {0, 1}), Labels({2}, {1, 1})),
              (-std::log(1e-7) - std::log(1 - 1e-7)) / 2, 1e-14);
  const Array rows = Doubles({2, 3}, {0.05, 0.95, 0, 0.1, 0.8, 0.1});
  const double expected = (-std::log(0.95) - std::log(0.1)) / 2;
  EXPECT_NEAR(Measure("CategoricalCrossEntropy", rows, Labels({2, 3}, {0, 1, 0, 0, 0, 1})),
              expected, 1e-15);
  EXPECT_NEAR(Measure("SparseCategoricalCrossEntropy", rows, Labels({2}, {1, 2})), expected, 1e-15);
  EXPECT_NEAR(Measure("SparseCategoricalCrossEntropy", rows, Make<std::uint8_t>({2, 1}, {2, 0})),
              (-std::log(1e-7) - std::log(0.1)) / 2, 1e-14);
}

TEST(ElementMeanTest, DivergenceIsPerRowAndPoissonPerElement) {
  EXPECT_NEAR(
      Measure("KLDivergence", Doubles({2, 2}, {0.6, 0.4, 0.4, 0.6}), Labels({2, 2}, {0, 1, 0, 0})),
      std::log(1 / 0.4 + 1e-7) / 2, 1e-15);
  EXPECT_EQ(Measure("KLDivergence", Doubles({1, 2}, {0, 1}), Doubles({1, 2}, {0.5, 0.5})),
            kInfinity);
  EXPECT_NEAR(Measure("Poisson", Labels({2, 2}, {1, 1, 0, 0}), Labels({2, 2}, {0, 1, 0, 0})),
              (2 - std::log(1 + 1e-7)) / 4, 1e-15);
}

TEST(ElementMeanTest, ALabelWithoutAClassIsRefused) {
  const Array rows = Doubles({2, 3}, {1, 2, 3, 4, 5, 6});
  for (const double label : {-1.0, 3.0, 0.5, kNaN}) {
    EXPECT_THAT(
        Refused("SparseCategoricalCrossEntropy", rows, Doubles({2}, {0, label})),
        IsError(Code::kInvalidArgument, AllOf(HasSubstr("target 1"), HasSubstr("from 0 to 2"))));
  }
}

TEST(WeightedMeanTest, WeighsValuesAndLeavesOutThoseWithoutWeight) {
  EXPECT_EQ(Measure("Mean", Doubles({3}, {0.5, 1.5, kNaN}), Labels({3}, {3, 1, 0})), 0.75);
  EXPECT_EQ(Measure("Mean", Doubles({}, {0.25}), Labels({}, {7})), 0.25);
  EXPECT_TRUE(std::isnan(Measure("Mean", Doubles({1}, {1}), Labels({1}, {0}))));
  for (const double weight : {-1.0, kNaN, kInfinity}) {
    EXPECT_THAT(Refused("Mean", Doubles({1}, {1}), Doubles({1}, {weight})),
                IsError(Code::kInvalidArgument, HasSubstr("weight 0 is")));
  }
}

TEST(ConfusionTest, ScoresOfYesOrNoCountTheClassOne) {
  const Array scores = Make<float>({6}, {0, 0.2F, 1, 0.8F, 0.6F, 0.5F});
  const Array targets = Labels({6}, {0, 1, 1, 0, 1, 1});
  EXPECT_EQ(Measure("Precision", scores, targets), 0.75);
  EXPECT_EQ(Measure("Recall", scores, targets), 0.75);
  EXPECT_EQ(Measure("F1Score", scores, targets), 0.75);
  const Array few = Doubles({4}, {0.9, 0.1, 0.2, 0.3});
  EXPECT_EQ(Measure("Precision", few, Labels({4}, {1, 1, 1, 0})), 1.0);
  EXPECT_NEAR(Measure("Recall", few, Labels({4}, {1, 1, 1, 0})), 1.0 / 3, 1e-16);
  EXPECT_EQ(Measure("F1Score", few, Labels({4}, {1, 1, 1, 0})), 0.5);
  EXPECT_EQ(Measure("Precision", Doubles({2}, {0, 0}), Labels({2}, {0, 0})), 0.0);
}

TEST(ConfusionTest, SeveralClassesAreCountedTogether) {
  const Array predicted = Labels({6}, {0, 2, 1, 0, 0, 1});
  const Array targets = Labels({6}, {0, 1, 2, 0, 1, 2});
  for (const char* name : {"F1Score", "Precision", "Recall"}) {
    EXPECT_NEAR(Measure(name, predicted, targets), 2.0 / 6, 1e-16);
    EXPECT_EQ(Measure(name, Doubles({2, 2}, {1, 2, 2, 1}), Labels({2}, {1, 1})), 0.5);
  }
}

TEST(ScoreCurveTest, TheAreaIsTheShareOfPairsInOrder) {
  const Array scores = Doubles({5}, {0.1, 0.4, 0.4, 0.35, 0.8});
  // Of six pairs four are in order, and one is a tie.
  EXPECT_EQ(Measure("AUC", scores, Labels({5}, {0, 0, 1, 1, 1})), 4.5 / 6);
  EXPECT_EQ(Measure("AUC", Doubles({5, 1}, {1, 2, 3, 4, 5}), Doubles({5}, {0, 0, 0, 1, 1})), 1.0);
  EXPECT_TRUE(std::isnan(Measure("AUC", scores, Labels({5}, {1, 1, 1, 1, 1}))));
  EXPECT_TRUE(std::isnan(Measure("AUC", Doubles({2}, {kNaN, 1}), Labels({2}, {0, 1}))));
}

TEST(ScoreCurveTest, TheAreaOfSeveralLabelsIsTheirMean) {
  EXPECT_EQ(Measure("AUC", Doubles({2, 2}, {0.1, 0.9, 0.8, 0.2}), Labels({2, 2}, {0, 0, 1, 1})),
            0.5);
}

TEST(ScoreCurveTest, RocHasAPointForEachScore) {
  const auto metric = Metric::Make("ROC");
  metric->Update(Doubles({5}, {0.3, 0.6, 0.7, 0.8, 0.6}).view(),
                 Labels({5}, {0, 1, 1, 1, 0}).view());
  const auto curve = metric->Value();
  ASSERT_EQ(curve.size(), 3U);
  EXPECT_EQ(curve[0].name, "fpr");
  EXPECT_THAT(curve[0].values, ElementsAre(0, 0, 0, 0.5, 1));
  EXPECT_EQ(curve[1].name, "tpr");
  EXPECT_THAT(curve[1].values, ElementsAre(0, 1.0 / 3, 2.0 / 3, 1, 1));
  EXPECT_EQ(curve[2].name, "thresholds");
  EXPECT_THAT(curve[2].values, ElementsAre(kInfinity, 0.8, 0.7, 0.6, 0.3));
}

TEST(ScoreCurveTest, PrecisionAndRecallEndWhereNothingIsAccepted) {
  const auto metric = Metric::Make("PrecisionRecallCurve");
  EXPECT_THAT(metric->Value()[0].values, ElementsAre(1.0));
  metric->Update(Doubles({4}, {0.1, 0.4, 0.35, 0.8}).view(), Labels({4}, {0, 0, 1, 1}).view());
  const auto curve = metric->Value();
  ASSERT_EQ(curve.size(), 3U);
  EXPECT_THAT(curve[0].values, ElementsAre(0.5, 2.0 / 3, 0.5, 1, 1));
  EXPECT_THAT(curve[1].values, ElementsAre(1, 1, 0.5, 0.5, 0));
  EXPECT_THAT(curve[2].values, ElementsAre(0.1, 0.35, 0.4, 0.8));
}

TEST(ScoreCurveTest, ACurveOfNaNsIsRefused) {
  const auto metric = Metric::Make("ROC");
  metric->Update(Doubles({2}, {kNaN, 1}).view(), Labels({2}, {0, 1}).view());
  EXPECT_THAT(ErrorOf([&] { metric->Value(); }),
              IsError(Code::kInvalidArgument, HasSubstr("1 of 2 predictions are NaN")));
}

TEST(BinnedAucTest, CountsAtThresholds) {
  // At -1e-7, 2/4, 3/4, 4/4 and 1+1e-7: the positives 0.9 and 0.4 reach 3 and 1 of them.
  const double tpr[] = {1, (1 + 1e-6) / (2 + 1e-6), (1 + 1e-6) / (2 + 1e-6), 1e-6 / (2 + 1e-6),
                        1e-6 / (2 + 1e-6)};
  const double fpr[] = {2 / (2 + 1e-6), 1 / (2 + 1e-6), 0, 0, 0};  // 0.1 and 0.6: 1 and 2
  double area = 0;
  for (int i = 0; i < 4; ++i) area += (tpr[i] + tpr[i + 1]) * (fpr[i] - fpr[i + 1]) / 2;
  EXPECT_NEAR(Measure("AUC", Doubles({4}, {0.9, 0.4, 0.1, 0.6}), Labels({4}, {1, 1, 0, 0}),
                      {.threshold_num = 5}),
              area, 1e-15);
  for (const int number : {1, -3, (1 << 20) + 1}) {
    EXPECT_THAT(ErrorOf([&] { Metric::Make("AUC", {.threshold_num = number}); }),
                IsError(Code::kInvalidArgument, HasSubstr(std::to_string(number))));
  }
}

TEST(MetricTest, ShapesThatDoNotFitAreBothNamed) {
  const Array predictions = Doubles({2, 3}, {1, 2, 3, 4, 5, 6});
  const Array targets = Labels({3}, {0, 1, 0});
  for (const std::string& name : Metric::Names()) {
    EXPECT_THAT(Refused(name, predictions, targets),
                IsError(Code::kInvalidArgument, AllOf(HasSubstr("(2, 3)"), HasSubstr("(3)"))))
        << name;
  }
  EXPECT_THAT(Refused("MSE", predictions, targets),
              IsError(Code::kInvalidArgument,
                      HasSubstr("preds and targets are expected to have the same shape")));
  EXPECT_THAT(Refused("ROC", predictions, Labels({2, 3}, {0, 1, 0, 1, 0, 1})),
              IsError(Code::kInvalidArgument, HasSubstr("3 scores a row")));
}

TEST(MetricTest, LabelsOfYesOrNoAreZeroAndOne) {
  for (const char* name : {"AUC", "ROC", "PrecisionRecallCurve", "F1Score"}) {
    EXPECT_THAT(Refused(name, Doubles({2}, {0.1, 0.2}), Labels({2}, {1, 2})),
                IsError(Code::kInvalidArgument, HasSubstr("target 1 is 2")));
  }
}

TEST(MetricTest, BytesThatDoNotFitTheShapeAreRefused) {
  for (const std::string& name : Metric::Names()) {
    Array predictions = Doubles({2, 5}, std::vector<double>(10, 0.5));
    predictions.data.pop_back();
    EXPECT_THROW(Measure(name, predictions, predictions), Error) << name;
    predictions.shape = {-1, -10};
    EXPECT_THROW(Measure(name, predictions, predictions), Error) << name;
    predictions.shape = {1LL << 62, 1LL << 62};
    EXPECT_THROW(Measure(name, predictions, predictions), Error) << name;
  }
}

TEST(MetricTest, HalfPrecisionMustBeConverted) {
  Array half{.dtype = DType::kFloat16, .shape = {2}, .data = std::vector<std::byte>(4)};
  EXPECT_THAT(Refused("MAE", half, half), IsError(Code::kInvalidArgument, HasSubstr("float32")));
}

TEST(MetricTest, WhatIsRefusedChangesNothing) {
  const auto metric = Metric::Make("SparseCategoricalCrossEntropy");
  const Array scores = Doubles({2, 2}, {0.5, 0.5, 0.25, 0.75});
  metric->Update(scores.view(), Labels({2}, {0, 1}).view());
  const auto before = metric->State();
  EXPECT_THROW(metric->Update(scores.view(), Labels({2}, {0, 2}).view()), Error);
  EXPECT_EQ(metric->State(), before);
}

}  // namespace
}  // namespace orca::learn
