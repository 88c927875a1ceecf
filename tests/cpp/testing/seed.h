// Randomness that can be repeated, and how much of it this build can afford.
#pragma once

#include <cstdint>

namespace orca::testing {

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1  // as GCC says it
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
inline constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

/// ORCA_TEST_SEED, or a new one; printed once, so that a failure can be repeated.
std::uint64_t TestSeed();

/// ORCA_SCHEDULES, or `usual`. Schedule i is drawn from TestSeed() + i, so that one can be repeated
/// alone.
int TestSchedules(int usual);

}  // namespace orca::testing
