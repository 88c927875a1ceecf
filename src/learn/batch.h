// What a metric is given, as numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "orca/learn/metric.h"

namespace orca::learn {

/// The elements of an array as doubles; the memory of float64 is used as it is.
class Numbers {
 public:
  /// Throws kInvalidArgument when the bytes do not fit the shape, or for float16 and bfloat16.
  Numbers(const ArrayView& view, const char* what);
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  std::size_t size() const { return values_.size(); }
  double operator[](std::size_t i) const { return values_[i]; }
  /// Row i of rows that have `width` elements.
  std::span<const double> Row(std::size_t i, std::size_t width) const {
    return values_.subspan(i * width, width);
  }

 private:
  std::vector<double> converted_;
  std::span<const double> values_;
};

/// How predictions and labels lie beside each other.
struct Labelled {
  std::size_t labels = 0;
  std::size_t classes = 0;  ///< Scores of a label, the predicted class being the highest; 0: the
                            ///< prediction is an element of its own.
};

/// "(2, 3)"
std::string ShapeText(std::span<const std::int64_t> shape);
bool IsFloating(DType dtype);

/// Throws kInvalidArgument, naming both shapes, unless they are equal.
void CheckSameShape(const ArrayView& predictions, const ArrayView& targets);
/// A label for each prediction, or for each row of scores along the last dimension.
Labelled MatchLabels(const ArrayView& predictions, const ArrayView& targets);
/// As MatchLabels, but predictions are always scores of classes.
Labelled MatchClasses(const ArrayView& predictions, const ArrayView& targets);

/// The number of labels a row: one for (n), (n, 1) and mixtures of them, k for (n, k). Throws
/// kInvalidArgument for other shapes.
std::size_t ScoreColumns(const ArrayView& predictions, const ArrayView& targets);

/// The first of the highest scores; a NaN is higher than any number, as torch and numpy have it.
std::size_t ArgMax(std::span<const double> scores);
/// Whether label `i` is 1. Throws kInvalidArgument unless it is 0 or 1.
bool IsPositive(const Numbers& labels, std::size_t i);

}  // namespace orca::learn
