// The program "orca": what runs outside of a user's own program.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "orca/core/error.h"
#include "orca/core/unique_fd.h"
#include "orca/runtime/agent.h"

namespace {

constexpr std::string_view kUsage =
    "orca agent --fd N    serve the driver at the other end of descriptor N\n"
    "orca version         print the version\n";

int Agent(std::span<const std::string> arguments) {
  if (arguments.size() != 2 || arguments[0] != "--fd") {
    throw orca::Error(orca::Code::kInvalidArgument,
                      "\"orca agent\" is started by a driver; see \"orca help\"");
  }
  orca::runtime::RunAgent(orca::UniqueFd(std::atoi(arguments[1].c_str())));
  return 0;
}

int Run(std::span<const std::string> arguments) {
  const std::string command = arguments.empty() ? "help" : arguments[0];
  if (command == "agent") return Agent(arguments.subspan(1));
  if (command == "version") {
    std::puts(ORCA_VERSION);
    return 0;
  }
  if (command != "help" && command != "--help") {
    throw orca::Error(orca::Code::kInvalidArgument,
                      fmt::format("orca: there is no command \"{}\"\n{}", command, kUsage));
  }
  std::fputs(kUsage.data(), stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    return Run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
