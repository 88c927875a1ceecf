// What a program of tests does besides: commands that another process calls.
#pragma once

#include <span>
#include <string>

namespace orca::testing {

/// A command of the program, for tests of Python: `<room>_tests NAME ARGUMENTS...` runs it instead
/// of the tests and ends with its result. Define one in an unnamed namespace.
class Command {
 public:
  using Function = int (*)(std::span<char* const> arguments);
  Command(const char* name, Function function);
};

}  // namespace orca::testing
