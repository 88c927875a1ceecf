// Lines for people on standard error.
#pragma once

#include <string_view>

#include "orca/core/export.h"

namespace orca {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Writes one line ("orca: ..."), if `level` is at least ORCA_LOG (debug, info, warning, error;
/// default info). Any thread.
ORCA_API void Log(LogLevel level, std::string_view message);

}  // namespace orca
