// JSON from files that anybody may have written.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace orca::io {

/// A whole text as JSON; nothing when it is none, nests deeper than `max_depth`, or has a key twice
/// in one object: of those, readers take different ones.
std::optional<nlohmann::json> ParseStrictJson(std::string_view text, int max_depth);

bool IsUtf8(std::string_view text);

}  // namespace orca::io
