// Tensors as files hold them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "orca/core/dtype.h"
#include "orca/core/error.h"
#include "orca/core/export.h"

namespace orca::io {

/// The element types of files: those of DType, with the same values, and more that the engine
/// carries but does not compute with.
enum class TensorType : std::uint8_t {
  kFloat64 = 0,
  kFloat32 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kInt8 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kUInt8 = 8,
  kBool = 9,
  kUInt16 = 10,
  kUInt32 = 11,
  kUInt64 = 12,
  kComplex64 = 13,
  kFloat8E5M2 = 14,
  kFloat8E4M3 = 15,
  kFloat8E8M0 = 16,
};
inline constexpr int kTensorTypeCount = 17;

/// Bytes of one element.
ORCA_API std::size_t SizeOf(TensorType type);
/// As torch names it, e.g. "bfloat16".
ORCA_API const char* Name(TensorType type);
/// The type with that name; throws kInvalidArgument with the known ones.
ORCA_API TensorType TypeNamed(std::string_view name);
inline TensorType ToTensorType(DType dtype) { return static_cast<TensorType>(dtype); }
/// Nothing for a type that the engine does not compute with.
ORCA_API std::optional<DType> ToDType(TensorType type);

/// What a tensor is.
struct TensorSpec {
  std::string name;
  TensorType type = TensorType::kFloat32;
  std::vector<std::int64_t> shape;

  bool operator==(const TensorSpec&) const = default;
};

/// The bytes of a tensor; nothing when a dimension is negative or no memory holds it.
ORCA_API std::optional<std::uint64_t> ByteSize(TensorType type,
                                               std::span<const std::int64_t> shape);
/// "float32 (3, 4)".
ORCA_API std::string Describe(const TensorSpec& spec);

/// A tensor in memory that somebody else keeps, row-major and little-endian.
struct Tensor {
  TensorSpec spec;
  std::span<const std::byte> data;
};
/// Throws kInvalidArgument unless `data` has the size that the shape says.
ORCA_API void CheckTensor(const Tensor& tensor);

/// A tensor that was read from a file of its own.
struct FileTensor {
  Tensor tensor;
  std::shared_ptr<const void> owner;  ///< Keeps the data.
};

/// Throws kInvalidArgument at the first tensor of `expected` that `found` lacks or has with another
/// type or shape, and at the first that is not expected. `what` names what was read: "checkpoint
/// /a/model.7".
ORCA_API void CheckSameTensors(std::span<const TensorSpec> expected, std::span<const Tensor> found,
                               const std::string& what);

namespace internal {

template <typename T>
constexpr std::optional<TensorType> TypeOf() {
  if constexpr (std::is_same_v<T, double>) return TensorType::kFloat64;
  if constexpr (std::is_same_v<T, float>) return TensorType::kFloat32;
  if constexpr (std::is_same_v<T, std::int8_t>) return TensorType::kInt8;
  if constexpr (std::is_same_v<T, std::int16_t>) return TensorType::kInt16;
  if constexpr (std::is_same_v<T, std::int32_t>) return TensorType::kInt32;
  if constexpr (std::is_same_v<T, std::int64_t>) return TensorType::kInt64;
  if constexpr (std::is_same_v<T, std::uint8_t>) return TensorType::kUInt8;
  if constexpr (std::is_same_v<T, std::uint16_t>) return TensorType::kUInt16;
  if constexpr (std::is_same_v<T, std::uint32_t>) return TensorType::kUInt32;
  if constexpr (std::is_same_v<T, std::uint64_t>) return TensorType::kUInt64;
  return std::nullopt;
}

/// Throws kInvalidArgument unless `tensor` has `type` and its data begin where such elements may.
ORCA_API void CheckView(const Tensor& tensor, TensorType type);

}  // namespace internal

/// The elements of a tensor, without a copy. Throws kInvalidArgument when it has another type, or
/// when the file put it where the processor cannot read such elements.
template <typename T>
std::span<const T> ViewAs(const Tensor& tensor) {
  constexpr std::optional<TensorType> kType = internal::TypeOf<T>();
  static_assert(kType.has_value(), "no tensor has elements of this C++ type");
  internal::CheckView(tensor, *kType);
  return {reinterpret_cast<const T*>(tensor.data.data()), tensor.data.size() / sizeof(T)};
}

}  // namespace orca::io
