// Places where a mechanism can be left out, so that the tests of faults prove that they would
// notice.
#pragma once

#ifdef ORCA_MUTANTS
#include <cstdlib>
#include <string_view>
#endif

namespace orca {

#ifdef ORCA_MUTANTS
/// Whether the variable ORCA_MUTANT names this one. Only the test build asks; HACKING.md says how.
inline bool IsMutant(std::string_view name) {
  const char* const given = std::getenv("ORCA_MUTANT");
  return given != nullptr && name == given;
}
#else
constexpr bool IsMutant(const char* /*name*/) { return false; }
#endif

}  // namespace orca
