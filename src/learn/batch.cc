#include "learn/batch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "orca/core/error.h"

namespace orca::learn {
namespace {

template <typename... Arguments>
[[noreturn]] void Refuse(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  throw Error(Code::kInvalidArgument, fmt::format(format, std::forward<Arguments>(arguments)...));
}

std::size_t CountElements(const ArrayView& view, const char* what) {
  std::size_t count = 1;
  for (const std::int64_t extent : view.shape) {
    const auto factor = static_cast<std::size_t>(extent);
    if (extent < 0 || (extent > 0 && count > std::numeric_limits<std::size_t>::max() / factor))
      Refuse("the {} have the shape {}, which no memory holds", what, ShapeText(view.shape));
    count *= factor;
  }
  // In this order nothing overflows.
  if (view.data.size() % SizeOf(view.dtype) != 0 || view.data.size() / SizeOf(view.dtype) != count)
    Refuse("the {} have {} bytes, but the shape {} of {}", what, view.data.size(),
           ShapeText(view.shape), Name(view.dtype));
  return count;
}

template <typename T>
void Convert(std::span<const std::byte> from, std::span<double> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    T value;
    std::memcpy(&value, from.data() + i * sizeof(T), sizeof(T));
    to[i] = static_cast<double>(value);
  }
}

void ConvertBools(std::span<const std::byte> from, std::span<double> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = from[i] == std::byte{0} ? 0.0 : 1.0;
}

void ConvertAny(const ArrayView& view, std::span<double> to, const char* what) {
  switch (view.dtype) {
    case DType::kFloat64:
      return Convert<double>(view.data, to);
    case DType::kFloat32:
      return Convert<float>(view.data, to);
    case DType::kInt8:
      return Convert<std::int8_t>(view.data, to);
    case DType::kInt16:
      return Convert<std::int16_t>(view.data, to);
    case DType::kInt32:
      return Convert<std::int32_t>(view.data, to);
    case DType::kInt64:
      return Convert<std::int64_t>(view.data, to);
    case DType::kUInt8:
      return Convert<std::uint8_t>(view.data, to);
    case DType::kBool:
      return ConvertBools(view.data, to);
    case DType::kFloat16:
    case DType::kBFloat16:
      break;
  }
  Refuse("the {} are {}; convert them to float32 first", what, Name(view.dtype));
}

bool IsAligned(const ArrayView& view) {
  return reinterpret_cast<std::uintptr_t>(view.data.data()) % alignof(double) == 0;
}

std::size_t Product(std::span<const std::int64_t> shape) {
  std::size_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
  return count;
}

// Whether there is one label for each row of the predictions' last dimension.
bool HasLabelPerRow(std::span<const std::int64_t> predictions,
                    std::span<const std::int64_t> targets) {
  if (predictions.empty()) return false;
  const auto rows = predictions.first(predictions.size() - 1);
  if (std::ranges::equal(rows, targets)) return true;
  return targets.size() == predictions.size() && targets.back() == 1 &&
         std::ranges::equal(rows, targets.first(rows.size()));
}

Labelled OfClasses(const ArrayView& predictions, const ArrayView& targets) {
  const Labelled found{.labels = Product(targets.shape),
                       .classes = static_cast<std::size_t>(predictions.shape.back())};
  if (found.classes == 0 && found.labels > 0)
    Refuse("preds of shape {} have scores of no class", ShapeText(predictions.shape));
  return found;
}

}  // namespace

Numbers::Numbers(const ArrayView& view, const char* what) {
  const std::size_t count = CountElements(view, what);
  if (view.dtype == DType::kFloat64 && IsAligned(view)) {
    values_ = {reinterpret_cast<const double*>(view.data.data()), count};
    return;
  }
  converted_.resize(count);
  ConvertAny(view, converted_, what);
  values_ = converted_;
}

std::string ShapeText(std::span<const std::int64_t> shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

bool IsFloating(DType dtype) {
  return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
         dtype == DType::kBFloat16;
}

void CheckSameShape(const ArrayView& predictions, const ArrayView& targets) {
  if (std::ranges::equal(predictions.shape, targets.shape)) return;
  Refuse("preds and targets are expected to have the same shape, but have {} and {}",
         ShapeText(predictions.shape), ShapeText(targets.shape));
}

Labelled MatchLabels(const ArrayView& predictions, const ArrayView& targets) {
  const bool same = std::ranges::equal(predictions.shape, targets.shape);
  if (!same && !HasLabelPerRow(predictions.shape, targets.shape)) {
    Refuse(
        "preds of shape {} do not fit targets of shape {}; preds have the shape of the targets, or "
        "one dimension more for the scores of the classes",
        ShapeText(predictions.shape), ShapeText(targets.shape));
  }
  // The highest of one score says nothing: it is a score of yes or no.
  if (same || predictions.shape.back() == 1)
    return {.labels = Product(targets.shape), .classes = 0};
  return OfClasses(predictions, targets);
}

Labelled MatchClasses(const ArrayView& predictions, const ArrayView& targets) {
  if (!HasLabelPerRow(predictions.shape, targets.shape)) {
    Refuse(
        "preds of shape {} do not fit targets of shape {}; preds have one dimension more, for the "
        "scores of the classes",
        ShapeText(predictions.shape), ShapeText(targets.shape));
  }
  return OfClasses(predictions, targets);
}

std::size_t ScoreColumns(const ArrayView& predictions, const ArrayView& targets) {
  const auto without_ones = [](std::span<const std::int64_t> shape) {
    while (shape.size() > 1 && shape.back() == 1) shape = shape.first(shape.size() - 1);
    return shape;
  };
  const auto scores = without_ones(predictions.shape);
  const auto labels = without_ones(targets.shape);
  if (!std::ranges::equal(scores, labels) || scores.size() > 2) {
    Refuse(
        "preds of shape {} do not fit targets of shape {}; give one score and one label a row, or "
        "as many as there are independent labels",
        ShapeText(predictions.shape), ShapeText(targets.shape));
  }
  return scores.size() < 2 ? 1 : static_cast<std::size_t>(scores[1]);
}

std::size_t ArgMax(std::span<const double> scores) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (std::isnan(scores[i])) return i;
    if (scores[i] > scores[best]) best = i;
  }
  return best;
}

bool IsPositive(const Numbers& labels, std::size_t i) {
  if (labels[i] != 0.0 && labels[i] != 1.0) Refuse("target {} is {}; give 0 or 1", i, labels[i]);
  return labels[i] == 1.0;
}

}  // namespace orca::learn
