#pragma once

#include <nanobind/nanobind.h>

namespace orca::bindings {

/// Adds files of tensors, checkpoints and event files. A tensor is an array, or where numpy has no
/// such type (name of the type, shape, array of its bytes).
void BindIo(nanobind::module_& m);

}  // namespace orca::bindings
