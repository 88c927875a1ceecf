#pragma once

#include <nanobind/nanobind.h>

namespace orca::bindings {

/// Adds FlatLayout and GradientExchange, which python/orca/adapters use.
void BindLearn(nanobind::module_& m);

}  // namespace orca::bindings
