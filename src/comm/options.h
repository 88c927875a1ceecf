// Checks of options that were set in the struct itself.
#pragma once

#include "orca/comm/communicator.h"

namespace orca::comm {

/// Throws kInvalidArgument, naming the option and what it may be, when a value can never work.
void CheckOptions(const CommOptions& options);

}  // namespace orca::comm
