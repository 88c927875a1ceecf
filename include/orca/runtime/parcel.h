// Bytes on their way between processes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "orca/core/export.h"
#include "orca/core/unique_fd.h"

namespace orca::runtime {

/// Some byte strings, packed together: a function and the arrays it captured, or what it returned.
///
/// Short parcels travel inside their message. Long ones lie in a memfd that every process of a host
/// maps: one copy, whatever the number of workers. A receiver may write to what it has mapped; its
/// changes stay its own (the pages are copied when written). Copies of a Parcel share the bytes.
/// Any thread may read one.
class ORCA_API Parcel {
 public:
  /// Parcels up to this size travel inside their message.
  static constexpr std::size_t kInlineBytes = std::size_t{16} << 10;

  /// An empty parcel has no parts.
  Parcel() = default;
  /// Packs copies of `parts`, each 64-byte aligned. Throws kResourceExhausted when memory is short.
  static Parcel Pack(std::span<const std::span<const std::byte>> parts);
  class Builder;
  /// A parcel that arrived; Parts() checks it.
  static Parcel FromBytes(std::vector<std::byte> bytes);
  static Parcel FromFd(UniqueFd fd, std::size_t size);

  std::size_t size() const;
  /// The parts, in memory that lives as long as a copy of this parcel. Throws kPeerLost when the
  /// bytes are no parcel.
  std::vector<std::span<std::byte>> Parts() const;
  /// All bytes, as they travel.
  std::span<const std::byte> bytes() const;
  /// The memfd of a long parcel, for reading only; -1 for a short one.
  int fd() const;
  /// The bytes as a sealed file of its own descriptor, for reading only.
  UniqueFd ToFile() const;

 private:
  struct Content;
  explicit Parcel(std::shared_ptr<Content> content) : content_(std::move(content)) {}

  std::shared_ptr<Content> content_;
};

/// A parcel of `size` bytes that arrives in pieces.
class ORCA_API Parcel::Builder {
 public:
  /// Takes memory for it: throws kResourceExhausted when that is short.
  explicit Builder(std::size_t size);
  /// Adds the next piece; beyond `size` it throws kPeerLost.
  void Append(std::span<const std::byte> piece);
  bool complete() const { return done_ == size_; }
  /// When complete.
  Parcel Take();

 private:
  std::size_t size_;
  std::size_t done_ = 0;
  std::vector<std::byte> inside_;
  UniqueFd fd_;
};

}  // namespace orca::runtime
