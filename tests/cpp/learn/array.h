// Arrays for metrics.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "orca/learn/metric.h"

namespace orca::learn {

/// An array with its own memory.
struct Array {
  DType dtype = DType::kFloat64;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;

  ArrayView view() const { return {.dtype = dtype, .shape = shape, .data = data}; }
};

template <typename T>
constexpr DType DTypeOf() {
  if constexpr (std::is_same_v<T, double>) return DType::kFloat64;
  if constexpr (std::is_same_v<T, float>) return DType::kFloat32;
  if constexpr (std::is_same_v<T, std::int64_t>) return DType::kInt64;
  if constexpr (std::is_same_v<T, std::int32_t>) return DType::kInt32;
  if constexpr (std::is_same_v<T, std::int16_t>) return DType::kInt16;
  if constexpr (std::is_same_v<T, std::int8_t>) return DType::kInt8;
  return DType::kUInt8;
}

template <typename T>
Array Make(std::vector<std::int64_t> shape, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {.dtype = DTypeOf<T>(), .shape = std::move(shape), .data = {bytes.begin(), bytes.end()}};
}
inline Array Doubles(std::vector<std::int64_t> shape, const std::vector<double>& values) {
  return Make<double>(std::move(shape), values);
}
inline Array Labels(std::vector<std::int64_t> shape, const std::vector<std::int64_t>& values) {
  return Make<std::int64_t>(std::move(shape), values);
}

/// The rows from `begin` to `end` of an array.
inline Array Rows(const Array& array, std::int64_t begin, std::int64_t end) {
  Array rows{.dtype = array.dtype, .shape = array.shape, .data = {}};
  const std::int64_t all = array.shape[0];
  const std::int64_t row_bytes = all == 0 ? 0 : static_cast<std::int64_t>(array.data.size()) / all;
  rows.shape[0] = end - begin;
  rows.data.assign(array.data.begin() + begin * row_bytes, array.data.begin() + end * row_bytes);
  return rows;
}

}  // namespace orca::learn
