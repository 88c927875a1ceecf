// Arrays of Python as the engine's memory.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>
#include <span>

#include "orca/core/dtype.h"

namespace orca::bindings {

using Input = nanobind::ndarray<nanobind::ro>;
using Output = nanobind::ndarray<>;

/// The engine's name for a type, if it has one.
std::optional<DType> EngineType(nanobind::dlpack::dtype type);
nanobind::dlpack::dtype ArrayType(DType dtype);

/// The memory of a contiguous array of the CPU's; throws kInvalidArgument for any other.
std::span<const std::byte> AsBytes(const Input& array);
std::span<std::byte> AsBytes(const Output& array);

}  // namespace orca::bindings
