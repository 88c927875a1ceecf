// Why a group ended.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "orca/core/error.h"

namespace orca::comm {

/// The first thing that went wrong; every rank of the group throws it.
struct Failure {
  Code code = Code::kAborted;
  std::string text;
};

/// A link that breaks is usually an echo of something that another rank knows better: gives the
/// news a moment to arrive through `known`, and returns it instead of `echo`.
Failure FirstCause(const Failure& echo, const std::function<std::optional<Failure>()>& known);

}  // namespace orca::comm
