// The two ways to have batches gathered: when asked for, and ahead.
#pragma once

#include <memory>

#include "data/gather.h"
#include "orca/data/array_store.h"

namespace orca::data {

/// Gathers when asked, on the caller's thread.
std::unique_ptr<BatchLoader> NewPlainLoader(Gatherer gatherer);

/// Gathers up to `ahead` batches before they are asked for, on `threads` threads of its own.
/// Whoever asks for a batch gathers too, instead of waiting.
std::unique_ptr<BatchLoader> NewAheadLoader(Gatherer gatherer, int ahead, int threads);

}  // namespace orca::data
