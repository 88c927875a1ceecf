// Lines for people on standard error.
#pragma once

#include <cstddef>
#include <string_view>

#include "orca/core/export.h"

namespace orca {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Writes one line ("orca: ..."), if `level` is at least ORCA_LOG (debug, info, warning, error;
/// default info). Any thread.
ORCA_API void Log(LogLevel level, std::string_view message);

/// Text at the end of the terminal that standard error is: lines of the log come above it.
///
/// Any thread. The destructor takes it off.
class ORCA_API LogFooter {
 public:
  LogFooter();
  ~LogFooter();
  LogFooter(const LogFooter&) = delete;
  LogFooter& operator=(const LogFooter&) = delete;

  /// Puts whole lines, none longer than the terminal is wide, in the place of those that are there.
  void Show(std::string_view lines);
  /// Takes them off, before somebody else writes to the terminal. A line of the log does so, too.
  void Clear();

 private:
  friend void Log(LogLevel level, std::string_view message);
  void Erase();

  std::size_t drawn_ = 0;  // Lines that are on the terminal; the log's mutex guards it.
};

}  // namespace orca
