#pragma once

#include <nanobind/nanobind.h>

namespace orca::bindings {

/// Adds Update: a rule of learn::Update that is applied to arrays.
void BindUpdate(nanobind::module_& m);

}  // namespace orca::bindings
