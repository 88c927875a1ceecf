#include "io/array_parsers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "orca/core/error.h"

namespace orca::io {

std::vector<std::byte> SwapElements(std::span<const std::byte> data, std::size_t element) {
  std::vector<std::byte> swapped(data.begin(), data.end());
  for (std::size_t at = 0; at + element <= swapped.size(); at += element) {
    const auto begin = swapped.begin() + static_cast<std::ptrdiff_t>(at);
    std::reverse(begin, begin + static_cast<std::ptrdiff_t>(element));
  }
  return swapped;
}

FileView ViewOf(std::vector<std::byte> bytes) {
  auto owner = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  const std::span<const std::byte> view(*owner);
  return {view, std::move(owner)};
}

void ThrowDamagedArray(const Path& path, const std::string& why) {
  throw Error(Code::kUnavailable,
              fmt::format("{} is damaged: {}; use another copy of it, or write it again",
                          path.string(), why));
}

}  // namespace orca::io
