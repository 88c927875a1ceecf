// CRC-32C (Castagnoli), as fast as the processor allows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "orca/core/export.h"

namespace orca {

/// Returns the checksum of `size` bytes at `data`, continuing from `crc` (0 to begin).
ORCA_API std::uint32_t Crc32c(const void* data, std::size_t size, std::uint32_t crc = 0);

}  // namespace orca
