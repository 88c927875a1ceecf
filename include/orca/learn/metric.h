// How good predictions are, measured in parts that add up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "orca/core/dtype.h"
#include "orca/core/export.h"

namespace orca::learn {

/// Somebody else's array: its elements lie behind each other, the last dimension fastest.
struct ArrayView {
  DType dtype = DType::kFloat32;
  std::span<const std::int64_t> shape;  ///< Empty for a single value.
  std::span<const std::byte> data;
};

struct MetricOptions {
  double threshold = 0.5;        ///< BinaryAccuracy: scores above it mean 1.
  bool zero_based_label = true;  ///< Accuracy: whether the first of several classes is label 0.
  /// AUC: 0 keeps all scores and is exact. Otherwise counts at so many thresholds between 0 and 1
  /// are kept, as the BigDL engine does, and the area is an estimate.
  int threshold_num = 0;
};

/// A result: one number, or a curve's axis.
struct MetricArray {
  std::string name;
  std::vector<double> values;
  bool is_scalar = true;
};

class StateReader;
class StateWriter;

/// A measure of predictions that is taken in parts.
///
/// The parts may be batches, shards and workers: the value is the same bits for every split of the
/// rows and every order of merging, empty parts included. Integers are counted, floating values are
/// summed without rounding, curves gather all scores. docs/metrics.md has the rule of each metric.
///
/// One thread at a time may use it. What throws leaves the metric as it was.
class ORCA_API Metric {
 public:
  /// Throws kInvalidArgument for an unknown name (the message lists all) or an option out of range.
  static std::unique_ptr<Metric> Make(std::string_view name, const MetricOptions& options = {});
  /// The names that Make knows.
  static std::vector<std::string> Names();

  virtual ~Metric() = default;
  Metric(const Metric&) = delete;
  Metric& operator=(const Metric&) = delete;

  const std::string& name() const { return name_; }

  /// Adds a batch. Throws kInvalidArgument when the shapes do not fit each other, or a value is not
  /// one that the metric takes; float16 and bfloat16 must be converted before.
  /// "Mean" takes values for predictions and their weights for targets; a value of weight 0 says
  /// nothing, whatever it is.
  virtual void Update(const ArrayView& predictions, const ArrayView& targets) = 0;
  /// All that was added, for Merge in another process.
  std::vector<std::byte> State() const;
  /// Adds what another metric of the same name and options has seen. Throws kInvalidArgument when
  /// the bytes are not the state of such a metric.
  void Merge(std::span<const std::byte> state);
  /// One number, or the arrays of a curve. A number is NaN when nothing was added.
  virtual std::vector<MetricArray> Value() const = 0;

 protected:
  explicit Metric(std::string_view name) : name_(name) {}

 private:
  virtual void Write(StateWriter& writer) const = 0;
  /// Reads all that Write wrote, then adds it.
  virtual void MergeFrom(StateReader& reader) = 0;

  std::string name_;
};

}  // namespace orca::learn
