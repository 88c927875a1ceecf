// How Arrow writes the engine's types.
#pragma once

#include <array>

#include "orca/core/dtype.h"

namespace orca::data {

/// The format string of a type. Arrow has no bfloat16: its two bytes are binary.
inline const char* ArrowFormat(DType dtype) {
  constexpr std::array<const char*, kDTypeCount> kFormats = {"g", "f", "e", "w:2", "c",
                                                             "s", "i", "l", "C",   "b"};
  return kFormats[static_cast<std::size_t>(dtype)];
}

}  // namespace orca::data
