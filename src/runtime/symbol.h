// Functions by name of their module and place in it.
#pragma once

#include <cstdint>
#include <string>

namespace orca::runtime {

/// A function that another process of the same program can find.
struct Symbol {
  std::string module;  ///< The file, for people.
  std::string build;   ///< The build id of the module, in hex.
  std::uint64_t offset = 0;
};

/// Where `function` lies. Throws kInvalidArgument when its module has no build id.
Symbol SymbolOf(void (*function)());
/// The function in this process. Throws kFailedPrecondition when its module is not here, or another
/// build of it.
void (*Resolve(const Symbol& symbol))();

}  // namespace orca::runtime
