// Turns errno into orca::Error.
#pragma once

#include <string>

#include "orca/core/error.h"

namespace orca::net {

/// Text of `error`, e.g. "Connection refused".
std::string ErrnoText(int error);

/// Throws `code` with "`what`: <text of error>". Where the kernel ran out of descriptors or memory
/// it throws kResourceExhausted instead, naming the limit and how to raise it.
[[noreturn]] void ThrowErrno(Code code, const std::string& what, int error);

}  // namespace orca::net
