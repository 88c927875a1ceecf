// How deep words of a file or a peer nest, asked before a parser follows them on its stack.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "orca/core/export.h"

namespace orca {

/// Lists and maps inside each other that readers accept.
inline constexpr std::size_t kMaxNesting = 200;

/// Whether JSON nests at most `most` deep. What is no JSON gets an answer, too.
ORCA_API bool IsShallowJson(std::string_view text, std::size_t most = kMaxNesting);
/// The same of MessagePack.
ORCA_API bool IsShallowMessagePack(std::span<const std::byte> bytes,
                                   std::size_t most = kMaxNesting);

}  // namespace orca
