#include "io/strict_json.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace orca::io {

std::optional<nlohmann::json> ParseStrictJson(std::string_view text, int max_depth) {
  using Json = nlohmann::json;
  using Event = Json::parse_event_t;
  bool is_bad = false;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, Event event, Json& parsed) {
    if (is_bad) return false;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::key && !keys.back().insert(parsed.get_ref<std::string&>()).second)
      is_bad = true;
    if (event == Event::object_end) keys.pop_back();
    if ((event == Event::object_start || event == Event::array_start) && depth >= max_depth)
      is_bad = true;
    return !is_bad;  // nothing more is kept
  };
  Json json = Json::parse(text, watch, false);
  if (is_bad || json.is_discarded()) return std::nullopt;
  return json;
}

bool IsUtf8(std::string_view text) {
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

}  // namespace orca::io
