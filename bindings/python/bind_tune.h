#pragma once

#include <nanobind/nanobind.h>

namespace orca::bindings {

/// Adds TuneParameter, TuneSpace, TuneTrial and TuneStudy, which python/orca/tune wraps.
void BindTune(nanobind::module_& m);

}  // namespace orca::bindings
