#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "orca/comm/communicator.h"

namespace orca::bindings {

/// Adds Store, Communicator and Work, which python/orca/comm.py wraps.
void BindComm(nanobind::module_& m);
/// A communicator of the runtime as the object that orca.comm wraps; closing that leaves it open.
nanobind::object WrapCommunicator(std::shared_ptr<comm::Communicator> communicator);
/// What such an object wraps.
std::shared_ptr<comm::Communicator> UnwrapCommunicator(nanobind::handle wrapped);

}  // namespace orca::bindings
