// Sleeping on a word of shared memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "orca/core/export.h"

namespace orca {

/// Sleeps while `word` is `expected`, at most `timeout`. May return early. Works between processes.
ORCA_API void FutexWait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                        std::chrono::milliseconds timeout);
/// Wakes everybody who sleeps on `word`.
ORCA_API void FutexWakeAll(std::atomic<std::uint32_t>& word);

}  // namespace orca
