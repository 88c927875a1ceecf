#pragma once

#include <nanobind/nanobind.h>

namespace orca::bindings {

/// Adds Store, Communicator and Work, which python/orca/comm.py wraps.
void BindComm(nanobind::module_& m);

}  // namespace orca::bindings
