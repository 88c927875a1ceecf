#include "testing/failing_new.h"

#include <cstdlib>
#include <new>

#include "orca/core/error.h"

namespace orca::testing {
namespace {

constexpr std::int64_t kOff = -1;

thread_local std::int64_t left = kOff;  // that succeed before one fails
thread_local bool lasting = false;
thread_local bool has_fired = false;

}  // namespace

FailingNew::FailingNew(std::int64_t n, bool lasts) {
  has_fired = false;
  lasting = lasts;
  left = n;
}

FailingNew::~FailingNew() { left = kOff; }

bool FailingNew::fired() const { return has_fired; }

std::int64_t FailEachNew(const std::function<void()>& body, const std::function<void()>& after) {
  for (std::int64_t n = 0;; ++n) {
    for (const bool lasts : {false, true}) {
      bool fired = false;
      {
        const FailingNew failing(n, lasts);
        try {
          body();
        } catch (const std::bad_alloc&) {
        } catch (const Error&) {
        }
        fired = failing.fired();
      }
      after();
      if (!fired) return n;
    }
  }
}

}  // namespace orca::testing

namespace {

// Whether this one is to fail.
bool Fails() {
  using orca::testing::has_fired;
  using orca::testing::kOff;
  using orca::testing::lasting;
  using orca::testing::left;
  if (left == kOff) return false;
  if (left > 0) {
    --left;
    return false;
  }
  has_fired = true;
  if (!lasting) left = kOff;
  return true;
}

}  // namespace

void* operator new(std::size_t size) {
  void* const memory = Fails() ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new[](std::size_t size) { return ::operator new(size); }
// These, too: a sanitizer's own would not fit the delete below.
void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  return Fails() ? nullptr : std::malloc(size == 0 ? 1 : size);
}
void* operator new[](std::size_t size, const std::nothrow_t& tag) noexcept {
  return ::operator new(size, tag);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
