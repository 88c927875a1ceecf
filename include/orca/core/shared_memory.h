// Memory that several processes map.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "orca/core/export.h"
#include "orca/core/unique_fd.h"

namespace orca {

/// A mapping of a memfd: shared memory without a name, so nothing is left behind when its users
/// die.
///
/// Pages are taken when they are first touched. The size is sealed: a peer cannot shrink it under
/// us (SIGBUS).
class ORCA_API SharedMemory {
 public:
  /// Makes and maps `bytes` of zeroes. `label` shows in /proc/PID/maps. Throws kResourceExhausted
  /// when descriptors or address space run out; it does not reserve memory (see CheckMemoryFor).
  static SharedMemory Create(const std::string& label, std::size_t bytes);
  /// Maps memory that another process made; throws kPeerLost unless it is sealed and exactly
  /// `bytes` long.
  static SharedMemory Map(UniqueFd fd, std::size_t bytes);

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept
      : fd_(std::move(other.fd_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  /// To hand to another process; -1 for memory that another process made.
  int fd() const { return fd_.get(); }

 private:
  SharedMemory(UniqueFd fd, std::byte* data, std::size_t size)
      : fd_(std::move(fd)), data_(data), size_(size) {}

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace orca
