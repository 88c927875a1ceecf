#include "memory.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>

#include "engine.h"

namespace orca::plugin {
namespace {

struct Counters {
  std::atomic<std::int64_t> tensors{0};
  std::atomic<std::int64_t> bytes{0};
  std::atomic<std::int64_t> live{0};
  std::atomic<int> epoch{-1};  // The fork epoch that has used the arena; -1: none yet.
};
Counters counters;

void Release(void* memory) {
  // Registered memory is shared with a forked child: what the child gives back still belongs to the
  // parent.
  if (memory == nullptr || counters.epoch.load() != ForkEpoch()) return;
  counters.live.fetch_sub(1, std::memory_order_relaxed);
  Engine().release(memory);
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    OrcaError error{};
    if (bytes > 0) {
      if (void* memory = Try(bytes, error)) return {memory, memory, &Release, at::Device(at::kCPU)};
      TORCH_WARN_ONCE("orca: no registered memory (", error.message,
                      "); using ordinary memory, which collectives have to copy");
    }
    return c10::GetCPUAllocator()->allocate(bytes);
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  static void* Try(std::size_t bytes, OrcaError& error) {
    int epoch = -1;
    if (!counters.epoch.compare_exchange_strong(epoch, ForkEpoch()) && epoch != ForkEpoch()) {
      snprintf(error.message, sizeof(error.message),
               "this process is a forked child of the one that the memory belongs to");
      return nullptr;
    }
    void* memory = Engine().allocate(bytes, &error);
    if (memory == nullptr) return nullptr;
    counters.tensors.fetch_add(1, std::memory_order_relaxed);
    counters.bytes.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
    counters.live.fetch_add(1, std::memory_order_relaxed);
    return memory;
  }
};

}  // namespace

std::shared_ptr<c10::Allocator> RegisteredAllocator() {
  // Never destroyed: tensors may be released after the statics of this library are gone.
  static auto* const allocator = new std::shared_ptr<c10::Allocator>(std::make_shared<Allocator>());
  return *allocator;
}

at::Tensor EmptyRegistered(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::detail::empty_generic(sizes, RegisteredAllocator().get(),
                                   c10::DispatchKeySet(c10::DispatchKey::CPU), dtype, std::nullopt);
}

bool IsRegistered(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().data_ptr().get_deleter() == &Release;
}

MemoryStats GetMemoryStats() {
  return {counters.tensors.load(), counters.bytes.load(), counters.live.load()};
}

}  // namespace orca::plugin
