// Numbers that are not finite, and copies that look at what they copy.
#pragma once

#include <cstddef>
#include <span>

#include "orca/core/dtype.h"

namespace orca::learn {

/// Copies `to.size()` bytes; says whether all of these numbers are finite.
bool CopyAndCheck(DType dtype, const void* from, std::span<std::byte> to);
/// Whether all of these numbers are finite.
bool AllFinite(DType dtype, std::span<const std::byte> data);

}  // namespace orca::learn
