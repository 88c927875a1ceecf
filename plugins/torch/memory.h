// Tensors in registered memory, which collectives reduce in place without a copy.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>

namespace orca::plugin {

/// An uninitialised CPU tensor in registered memory. Ordinary memory, with one warning, when there
/// is none to be had: in a forked child, or when the memory limit is reached.
at::Tensor EmptyRegistered(at::IntArrayRef sizes, at::ScalarType dtype);
/// Whether the tensor's memory came from EmptyRegistered or the allocator.
bool IsRegistered(const at::Tensor& tensor);
/// The allocator behind it. Lives as long as the process.
std::shared_ptr<c10::Allocator> RegisteredAllocator();

/// What was allocated in this process so far.
struct MemoryStats {
  std::int64_t tensors = 0;  ///< Allocations of registered memory.
  std::int64_t bytes = 0;    ///< Their sum.
  std::int64_t live = 0;     ///< Those that have not been released.
};
MemoryStats GetMemoryStats();

}  // namespace orca::plugin
