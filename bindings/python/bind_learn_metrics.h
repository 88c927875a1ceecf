#pragma once

#include <nanobind/nanobind.h>

namespace orca::bindings {

/// Adds Metric, which python/orca/learn/engine_metric.py wraps.
void BindMetrics(nanobind::module_& m);

}  // namespace orca::bindings
