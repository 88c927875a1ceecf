// The one table of element types and what the formats call them.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "orca/io/tensor.h"

namespace orca::io {

struct TensorTypeInfo {
  TensorType type;
  const char* name;         ///< As torch has it.
  std::string_view stored;  ///< In safetensors files.
  std::string_view numpy;   ///< In NPY files, without the byte order; empty: numpy has none.
  std::string_view torch;   ///< In files of torch.save; empty: a storage of bytes holds it.
  std::size_t bytes;
};

inline constexpr std::array<TensorTypeInfo, kTensorTypeCount> kTensorTypes = {{
    {TensorType::kFloat64, "float64", "F64", "f8", "DoubleStorage", 8},
    {TensorType::kFloat32, "float32", "F32", "f4", "FloatStorage", 4},
    {TensorType::kFloat16, "float16", "F16", "f2", "HalfStorage", 2},
    {TensorType::kBFloat16, "bfloat16", "BF16", "", "BFloat16Storage", 2},
    {TensorType::kInt8, "int8", "I8", "i1", "CharStorage", 1},
    {TensorType::kInt16, "int16", "I16", "i2", "ShortStorage", 2},
    {TensorType::kInt32, "int32", "I32", "i4", "IntStorage", 4},
    {TensorType::kInt64, "int64", "I64", "i8", "LongStorage", 8},
    {TensorType::kUInt8, "uint8", "U8", "u1", "ByteStorage", 1},
    {TensorType::kBool, "bool", "BOOL", "b1", "BoolStorage", 1},
    {TensorType::kUInt16, "uint16", "U16", "u2", "", 2},
    {TensorType::kUInt32, "uint32", "U32", "u4", "", 4},
    {TensorType::kUInt64, "uint64", "U64", "u8", "", 8},
    {TensorType::kComplex64, "complex64", "C64", "c8", "ComplexFloatStorage", 8},
    {TensorType::kFloat8E5M2, "float8_e5m2", "F8_E5M2", "", "", 1},
    {TensorType::kFloat8E4M3, "float8_e4m3fn", "F8_E4M3", "", "", 1},
    {TensorType::kFloat8E8M0, "float8_e8m0fnu", "F8_E8M0", "", "", 1},
}};

inline const TensorTypeInfo& InfoOf(TensorType type) {
  return kTensorTypes.at(static_cast<std::size_t>(type));
}

}  // namespace orca::io
