#pragma once

#include <nanobind/nanobind.h>

namespace orca::bindings {

/// Adds Trigger and Schedule, which python/orca/learn/trigger.py and optimizers/schedule.py wrap.
void BindSchedules(nanobind::module_& m);

}  // namespace orca::bindings
