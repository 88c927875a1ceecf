#include "orca/core/dtype.h"

namespace orca {

std::size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt16:
      return 2;
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

const char* Name(DType dtype) {
  static constexpr const char* kNames[kDTypeCount] = {"float64", "float32", "float16", "bfloat16",
                                                      "int8",    "int16",   "int32",   "int64",
                                                      "uint8",   "bool"};
  const auto index = static_cast<unsigned>(dtype);
  return index < kDTypeCount ? kNames[index] : "unknown type";
}

}  // namespace orca
