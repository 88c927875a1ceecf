#include "testing/seed.h"

#include <cstdio>
#include <cstdlib>
#include <random>

namespace orca::testing {

std::uint64_t TestSeed() {
  static const std::uint64_t seed = [] {
    const char* given = std::getenv("ORCA_TEST_SEED");
    const std::uint64_t value =
        given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::printf("[ SEED     ] ORCA_TEST_SEED=%llu repeats this run\n",
                static_cast<unsigned long long>(value));
    std::fflush(stdout);
    return value;
  }();
  return seed;
}

int TestSchedules(int usual) {
  const char* const given = std::getenv("ORCA_SCHEDULES");
  return given != nullptr ? std::atoi(given) : usual;
}

}  // namespace orca::testing
