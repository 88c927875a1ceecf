// Why a group ended.
#pragma once

#include <string>

#include "orca/core/error.h"

namespace orca::comm {

/// The first thing that went wrong; every rank of the group throws it.
struct Failure {
  Code code = Code::kAborted;
  std::string text;
};

}  // namespace orca::comm
