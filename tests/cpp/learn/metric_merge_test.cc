// Metrics in parts: any split and order gives the bits of the whole, and no bytes do harm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "learn/array.h"
#include "net/expect_error.h"
#include "orca/learn/metric.h"
#include "testing/seed.h"

namespace orca::learn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Random = std::mt19937_64;

struct Data {
  Array predictions;
  Array targets;
};

// A metric, and options that change what it keeps.
struct Kind {
  std::string name;
  MetricOptions options = {};
};

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds;
  for (const std::string& name : Metric::Names()) kinds.push_back({name});
  kinds.push_back({"AUC", {.threshold_num = 20}});
  return kinds;
}

bool TakesLabels(const std::string& name) {
  return name == "Accuracy" || name == "Top5Accuracy" || name.starts_with("SparseCategorical");
}

Data RandomData(const std::string& name, std::int64_t rows, Random& random) {
  const bool curve = name == "ROC" || name == "PrecisionRecallCurve" || name == "AUC";
  const std::int64_t width = TakesLabels(name) ? 7 : 3;
  const std::vector<std::int64_t> wide = curve ? std::vector{rows} : std::vector{rows, width};
  const auto count = static_cast<std::size_t>(curve ? rows : rows * width);
  std::uniform_real_distribution<double> probability(0, 1);
  std::vector<double> values(count);
  // Few digits make ties, which curves must group.
  for (double& value : values)
    value = curve ? std::round(probability(random) * 50) / 50 : probability(random);
  std::vector<std::int64_t> labels(TakesLabels(name) ? static_cast<std::size_t>(rows) : count);
  for (std::int64_t& label : labels)
    label = static_cast<std::int64_t>(random() % (TakesLabels(name) ? 7 : 2));
  return {Doubles(wide, values), Labels(TakesLabels(name) ? std::vector{rows} : wide, labels)};
}

void Update(Metric& metric, const Data& data, std::int64_t begin, std::int64_t end) {
  metric.Update(Rows(data.predictions, begin, end).view(), Rows(data.targets, begin, end).view());
}

// The bits, so that NaN equals NaN.
std::vector<std::uint64_t> Bits(const Metric& metric) {
  std::vector<std::uint64_t> bits;
  for (const MetricArray& array : metric.Value()) {
    for (const double value : array.values)
      bits.push_back(std::isnan(value) ? 0 : std::bit_cast<std::uint64_t>(value));
    bits.push_back(array.values.size());
  }
  return bits;
}

std::unique_ptr<Metric> Whole(const Kind& kind, const Data& data) {
  auto metric = Metric::Make(kind.name, kind.options);
  Update(*metric, data, 0, data.targets.shape[0]);
  return metric;
}

TEST(MetricMergeTest, AnySplitAndOrderGivesTheBitsOfTheWhole) {
  Random random(testing::TestSeed());
  for (const Kind& kind : Kinds()) {
    for (int round = 0; round < 30; ++round) {
      const auto rows = static_cast<std::int64_t>(random() % 60);
      const Data data = RandomData(kind.name, rows, random);
      const auto whole = Whole(kind, data);
      // Cuts may fall together: some parts are empty.
      const std::size_t parts = 1 + random() % 5;
      std::vector<std::int64_t> cuts{0, rows};
      for (std::size_t i = 1; i < parts; ++i)
        cuts.push_back(static_cast<std::int64_t>(random()) & 63);
      for (std::int64_t& cut : cuts) cut = std::min(cut, rows);
      std::ranges::sort(cuts);
      std::vector<std::vector<std::byte>> states{Metric::Make(kind.name, kind.options)->State()};
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const auto part = Metric::Make(kind.name, kind.options);
        const std::int64_t middle = (cuts[i] + cuts[i + 1]) / 2;  // a worker has several batches
        Update(*part, data, middle, cuts[i + 1]);
        Update(*part, data, cuts[i], middle);
        states.push_back(part->State());
      }
      std::ranges::shuffle(states, random);
      const auto merged = Metric::Make(kind.name, kind.options);
      for (const auto& state : states) merged->Merge(state);
      ASSERT_EQ(Bits(*merged), Bits(*whole)) << kind.name << ", " << rows << " rows";
    }
  }
}

TEST(MetricMergeTest, LargeAndSmallValuesDoNotSwallowEachOther) {
  const auto whole = Metric::Make("MAE");
  const auto part = Metric::Make("MAE");
  whole->Update(Doubles({1}, {1e16}).view(), Doubles({1}, {0}).view());
  for (int i = 0; i < 1000; ++i) part->Update(Doubles({1}, {1}).view(), Doubles({1}, {0}).view());
  whole->Merge(part->State());
  EXPECT_EQ(whole->Value()[0].values[0], (1e16 + 1000) / 1001);
}

TEST(MetricMergeTest, AStateBelongsToItsMetric) {
  const auto state = Metric::Make("MAE")->State();
  EXPECT_THAT(ErrorOf([&] { Metric::Make("MSE")->Merge(state); }),
              IsError(Code::kInvalidArgument, AllOf(HasSubstr("'MSE'"), HasSubstr("'MAE'"))));
  const auto fine = Metric::Make("AUC", {.threshold_num = 20})->State();
  EXPECT_THAT(ErrorOf([&] { Metric::Make("AUC", {.threshold_num = 10})->Merge(fine); }),
              IsError(Code::kInvalidArgument, AllOf(HasSubstr("20"), HasSubstr("10"))));
}

TEST(MetricMergeTest, AnotherVersionIsNamed) {
  auto state = Metric::Make("MAE")->State();
  state[4] = std::byte{9};
  EXPECT_THAT(ErrorOf([&] { Metric::Make("MAE")->Merge(state); }),
              IsError(Code::kInvalidArgument, AllOf(HasSubstr("format 9"), HasSubstr("reads 1"))));
}

TEST(MetricMergeTest, ScoresOfOtherColumnsAreRefused) {
  for (const int thresholds : {0, 5}) {
    const MetricOptions options{.threshold_num = thresholds};
    const auto one = Metric::Make("AUC", options);
    const auto two = Metric::Make("AUC", options);
    one->Update(Doubles({2}, {0.1, 0.2}).view(), Labels({2}, {0, 1}).view());
    const Array labels = Labels({1, 2}, {0, 1});
    two->Update(Doubles({1, 2}, {0.1, 0.2}).view(), labels.view());
    EXPECT_THROW(one->Merge(two->State()), Error);
    EXPECT_THROW(one->Update(Doubles({1, 2}, {0.1, 0.2}).view(), labels.view()), Error);
  }
}

TEST(MetricMergeTest, AStateThatIsCutOrTooLongIsRefusedAndChangesNothing) {
  Random random(testing::TestSeed());
  for (const Kind& kind : Kinds()) {
    const auto state = Whole(kind, RandomData(kind.name, 9, random))->State();
    const auto metric = Whole(kind, RandomData(kind.name, 5, random));
    const auto before = metric->State();
    const std::size_t step = testing::kSanitized ? 7 : 1;
    for (std::size_t length = 0; length <= state.size() + 9; length += step) {
      if (length == state.size()) continue;
      auto bytes = state;
      bytes.resize(length);
      ASSERT_THAT(ErrorOf([&] { metric->Merge(bytes); }),
                  IsError(Code::kInvalidArgument, HasSubstr(kind.name)))
          << length << " of " << state.size();
    }
    ASSERT_EQ(metric->State(), before) << kind.name;
  }
}

TEST(MetricMergeTest, ChangedBytesAreRefusedOrMergedAndNeverCrash) {
  Random random(testing::TestSeed());
  for (const Kind& kind : Kinds()) {
    const auto state = Whole(kind, RandomData(kind.name, 9, random))->State();
    // An error costs a sanitizer much.
    for (int round = 0; round < (testing::kSanitized ? 100 : 2000); ++round) {
      auto bytes = state;
      for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
      const auto metric = Metric::Make(kind.name, kind.options);
      try {
        metric->Merge(bytes);
        metric->Merge(bytes);
        metric->Merge(metric->State());
        metric->Value();
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), Code::kInvalidArgument);
      }
    }
  }
}

TEST(MetricMergeTest, CountsBeyond64BitsAreRefused) {
  auto state = Metric::Make("Precision")->State();
  for (std::size_t i = state.size() - 8; i < state.size(); ++i) state[i] = std::byte{0xff};
  const auto metric = Metric::Make("Precision");
  metric->Merge(state);
  EXPECT_THAT(ErrorOf([&] { metric->Merge(state); }),
              IsError(Code::kInvalidArgument, HasSubstr("64 bits")));
}

}  // namespace
}  // namespace orca::learn
