// Takes a fuzzer's input apart.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace orca {

/// Hands out the bytes of an input; zeros when it is used up.
class FuzzInput {
 public:
  FuzzInput(const std::uint8_t* data, std::size_t size)
      : left_(std::as_bytes(std::span(data, size))) {}

  bool empty() const { return left_.empty(); }

  std::uint8_t TakeByte() { return empty() ? 0 : std::to_integer<std::uint8_t>(TakeBytes(1)[0]); }

  /// Up to `count` bytes.
  std::span<const std::byte> TakeBytes(std::size_t count) {
    const auto taken = left_.first(std::min(count, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }

  std::span<const std::byte> TakeRest() { return TakeBytes(left_.size()); }

 private:
  std::span<const std::byte> left_;
};

/// Ends the process where the fuzzer notices it.
inline void Require(bool held) {
  if (!held) __builtin_trap();
}

}  // namespace orca
