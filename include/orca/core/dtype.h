// The element types of arrays.
#pragma once

#include <cstddef>
#include <cstdint>

#include "orca/core/export.h"

namespace orca {

/// The element types that the engine computes with. The values are part of the wire format.
enum class DType : std::uint8_t {
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
};
inline constexpr int kDTypeCount = 10;

/// Bytes of one element.
ORCA_API std::size_t SizeOf(DType dtype);
ORCA_API const char* Name(DType dtype);

}  // namespace orca
