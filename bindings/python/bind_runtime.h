#pragma once

#include <nanobind/nanobind.h>

namespace orca::bindings {

/// Adds Context, Run, Nursery, Worker and what they hand out.
void BindRuntime(nanobind::module_& m);

}  // namespace orca::bindings
