// The bytes that carry what a metric has seen to another process.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace orca::learn {

static_assert(std::endian::native == std::endian::little, "states are little endian");

/// Writes a state: what it is of, then its numbers.
class StateWriter {
 public:
  /// Begins the state of the metric `name`.
  explicit StateWriter(std::string_view name);

  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    PutAll(std::span<const T>(&value, 1));
  }
  template <typename T>
  void PutAll(std::span<const T> values) {
    Append(std::as_bytes(values));
  }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  void Append(std::span<const std::byte> bytes);

  std::vector<std::byte> bytes_;
};

/// Reads a state, which may be anything.
class StateReader {
 public:
  /// Throws kInvalidArgument unless `bytes` begin as a state of the metric `name`.
  StateReader(std::string_view name, std::span<const std::byte> bytes);

  template <typename T>
  T Get() {
    T value{};
    GetAll(std::span<T>(&value, 1));
    return value;
  }
  template <typename T>
  void GetAll(std::span<T> values) {
    static_assert(std::is_arithmetic_v<T>);
    const auto bytes = TakeBytes(values.size_bytes());
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  std::size_t left() const { return left_.size(); }
  /// Throws unless everything was read.
  void Finish() const;
  /// Throws kInvalidArgument with the reason.
  [[noreturn]] void Refuse(std::string_view why) const;

 private:
  std::span<const std::byte> TakeBytes(std::size_t count);

  std::string name_;
  std::span<const std::byte> left_;
};

/// Adds counts of two states; throws when no integer holds the sum.
std::uint64_t AddCounts(std::uint64_t a, std::uint64_t b, const StateReader& reader);

}  // namespace orca::learn
