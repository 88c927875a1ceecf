// The border of the C functions that plugins call: nothing is thrown across it.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>

#include "orca/core/error.h"

namespace orca {

/// Fills a struct with `code` and `message`, as orca/plugin_api.h has it; null is nobody to tell.
template <typename Report>
void FillReport(Report* report, Code code, const char* message) {
  if (report == nullptr) return;
  report->code = static_cast<int>(code);
  const std::size_t length = std::min(std::strlen(message), sizeof(report->message) - 1);
  std::memcpy(report->message, message, length);
  report->message[length] = 0;
}

/// Runs `body`; returns 0, or the Code of what it threw.
template <typename Report, typename Body>
int Guard(Report* report, Body body) {
  try {
    body();
    return 0;
  } catch (const Error& e) {
    FillReport(report, e.code(), e.what());
    return static_cast<int>(e.code());
  } catch (const std::exception& e) {
    FillReport(report, Code::kInternal, e.what());
  } catch (...) {
    FillReport(report, Code::kInternal, "unknown exception");
  }
  return static_cast<int>(Code::kInternal);
}

}  // namespace orca
