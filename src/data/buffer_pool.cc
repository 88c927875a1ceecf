#include "data/buffer_pool.h"

#include <fmt/format.h>

#include <new>
#include <utility>

#include "orca/core/host.h"

namespace orca::data {
namespace {

// To ask what is left of the memory takes longer than to fill a small buffer.
constexpr std::size_t kAskFrom = std::size_t{16} << 20;

}  // namespace

void AlignedMemory::Free::operator()(std::byte* memory) const {
  ::operator delete(memory, std::align_val_t{kAlign});
}

std::byte* AlignedMemory::Grow(std::size_t bytes) {
  if (bytes <= size_) return memory_.get();
  memory_.reset();
  size_ = 0;
  if (bytes >= kAskFrom) CheckMemoryFor(bytes, "a batch; make batches smaller");
  memory_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kAlign})));
  size_ = bytes;
  return memory_.get();
}

BufferPool::BufferPool(std::size_t kept) : kept_(kept), forks_(ForkCount()) {}

std::unique_ptr<Buffer> BufferPool::Take() {
  if (!Forked()) {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      auto buffer = std::move(free_.back());  // the latest is still in the caches
      free_.pop_back();
      return buffer;
    }
  }
  return std::make_unique<Buffer>();
}

std::shared_ptr<const Batch> BufferPool::HandOut(std::unique_ptr<Buffer> buffer) {
  const Batch* const batch = &buffer->batch;
  std::shared_ptr<Buffer> owner(buffer.release(), [pool = shared_from_this()](Buffer* used) {
    pool->Give(std::unique_ptr<Buffer>(used));
  });
  return {std::move(owner), batch};
}

void BufferPool::Give(std::unique_ptr<Buffer> buffer) {
  if (Forked()) return;
  const std::lock_guard lock(mutex_);
  if (free_.size() < kept_) free_.push_back(std::move(buffer));
}

// In a child the lock may be one that a thread of the parent held, and nobody opens it again.
bool BufferPool::Forked() const { return ForkCount() != forks_; }

}  // namespace orca::data
