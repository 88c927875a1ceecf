#include "orca/core/nesting.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace orca {
namespace {

/// What begins with a byte of MessagePack: `values` that follow, or bytes to pass over.
struct Head {
  std::uint64_t values = 0;
  std::uint64_t bytes = 0;
};

/// Reads heads; past the end there are zeros, which parsers refuse.
class HeadReader {
 public:
  explicit HeadReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool done() const { return bytes_.empty(); }
  Head Next() {
    const auto first = Number(1);
    if (first < 0x80 || first >= 0xe0) return {};                          // a small number
    if (first < 0x90) return {.values = 2 * (first & 0x0fU)};              // a small map
    if (first < 0xa0) return {.values = first & 0x0fU};                    // a small list
    if (first < 0xc0) return {.bytes = first & 0x1fU};                     // a short text
    if (first < 0xc4) return {};                                           // nil, false, true
    if (first < 0xc7) return {.bytes = Number(1U << (first - 0xc4))};      // bytes
    if (first < 0xca) return {.bytes = Number(1U << (first - 0xc7)) + 1};  // an extension
    if (first < 0xcc) return {.bytes = first == 0xca ? 4U : 8U};           // a float
    if (first < 0xd4) return {.bytes = 1U << (first & 3U)};                // a number
    if (first < 0xd9) return {.bytes = (1U << (first - 0xd4)) + 1};        // a small extension
    if (first < 0xdc) return {.bytes = Number(1U << (first - 0xd9))};      // a text
    const std::uint64_t count = Number(first % 2 == 0 ? 2 : 4);
    return {.values = first < 0xde ? count : 2 * count};  // a list, a map
  }
  void Skip(std::uint64_t count) {
    bytes_ = bytes_.subspan(std::min<std::uint64_t>(count, bytes_.size()));
  }

 private:
  std::uint64_t Number(std::size_t size) {
    std::uint64_t value = 0;
    for (const std::byte byte : bytes_.first(std::min(size, bytes_.size())))
      value = value << 8U | static_cast<std::uint64_t>(byte);
    Skip(size);
    return value;
  }

  std::span<const std::byte> bytes_;
};

}  // namespace

bool IsShallowJson(std::string_view text, std::size_t most) {
  std::size_t depth = 0;
  bool is_text = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char letter = text[at];
    if (is_text && letter == '\\') {
      ++at;  // whatever follows
    } else if (letter == '"') {
      is_text = !is_text;
    } else if (!is_text && (letter == '[' || letter == '{')) {
      if (++depth > most) return false;
    } else if (!is_text && (letter == ']' || letter == '}') && depth > 0) {
      --depth;
    }
  }
  return true;
}

bool IsShallowMessagePack(std::span<const std::byte> bytes, std::size_t most) {
  HeadReader reader(bytes);
  std::vector<std::uint64_t> left;  // of the values of those that are open
  while (!reader.done()) {
    const Head head = reader.Next();
    reader.Skip(head.bytes);
    if (head.values > 0) {
      if (left.size() == most) return false;
      left.push_back(head.values);
      continue;
    }
    while (!left.empty() && --left.back() == 0) left.pop_back();
    if (left.empty()) return true;
  }
  return true;
}

}  // namespace orca
