// The command "orca tune".
#pragma once

#include <span>
#include <string>

namespace orca::cli {

/// "show PATH [--study ID] [--csv | --json | --html FILE]" or "salvage FILE".
int Tune(std::span<const std::string> arguments);

}  // namespace orca::cli
