#pragma once

#include <nanobind/nanobind.h>

namespace orca::bindings {

/// Adds ArrayStore and BatchLoader, which python/orca/data.py wraps.
void BindData(nanobind::module_& m);

}  // namespace orca::bindings
