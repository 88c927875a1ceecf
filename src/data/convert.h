// Conversions to float32.
#pragma once

#include <cstddef>

#include "orca/core/dtype.h"

namespace orca::data {

/// Converts `count` elements at `source` to float32 at `target`: value · scale + shift, in float32.
using ConvertFunction = void (*)(const std::byte* source, float* target, std::size_t count,
                                 float scale, float shift);

/// The conversion from uint8 or float64, for this processor; null for other types.
ConvertFunction FindConversion(DType from);

}  // namespace orca::data
