// Mechanisms that are left out, to see whether a test notices.
#pragma once

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>
#include <functional>

namespace orca::testing {

/// While it lives, the engine does without the mechanism of this name (orca/core/mutant.h). Only
/// for the programs of ORCA_MUTANT_TESTS in tests/cpp/CMakeLists.txt, and while no other thread
/// runs.
class Mutant {
 public:
  explicit Mutant(const char* name) { ::setenv("ORCA_MUTANT", name, 1); }
  Mutant(const Mutant&) = delete;
  Mutant& operator=(const Mutant&) = delete;
  ~Mutant() { ::unsetenv("ORCA_MUTANT"); }
};

/// Whether a test with this body would fail without a mechanism.
inline bool IsNoticed(const char* mutant, const std::function<void()>& body) {
  const Mutant without(mutant);
  ::testing::TestPartResultArray found;
  const ::testing::ScopedFakeTestPartResultReporter reporter(
      ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &found);
  try {
    body();
  } catch (const std::exception&) {
    return true;
  }
  for (int i = 0; i < found.size(); ++i)
    if (found.GetTestPartResult(i).failed()) return true;
  return false;
}

}  // namespace orca::testing
