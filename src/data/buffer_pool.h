// Memory of batches, used again and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "orca/data/array_store.h"

namespace orca::data {

/// Memory that begins with a cache line and keeps its largest size. What it holds is lost when it
/// grows.
class AlignedMemory {
 public:
  static constexpr std::size_t kAlign = 64;

  /// At least `bytes`; throws kResourceExhausted when they would go beyond a memory limit.
  std::byte* Grow(std::size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

/// Where a row of a batch comes from.
struct Place {
  const std::byte* const* values = nullptr;  ///< Of the shard's columns.
  std::uint64_t row = 0;                     ///< In the shard.
  const Column* columns = nullptr;           ///< Of the shard.
  bool in_file = false;
};

/// One batch and what it needs.
struct Buffer {
  Batch batch;
  struct Memory {
    AlignedMemory values;
    AlignedMemory offsets;
    AlignedMemory validity;
  };
  std::vector<Memory> memory;  ///< One a column.
  std::vector<Place> places;
};

/// Buffers that nobody uses at the moment. Any thread may use it; batches that are in use keep it
/// alive.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  /// Keeps at most `kept` buffers that nobody uses.
  explicit BufferPool(std::size_t kept);

  std::unique_ptr<Buffer> Take();
  /// The batch of `buffer`, whose memory comes back when the last pointer goes.
  std::shared_ptr<const Batch> HandOut(std::unique_ptr<Buffer> buffer);

 private:
  void Give(std::unique_ptr<Buffer> buffer);
  bool Forked() const;

  const std::size_t kept_;
  const std::uint64_t forks_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Buffer>> free_;  // guarded by mutex_
};

}  // namespace orca::data
