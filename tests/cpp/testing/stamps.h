// Processes that are killed between two writes.
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <functional>
#include <span>
#include <stdexcept>

#include "learn/stamps.h"

namespace orca::testing {

/// Memory that outlives the processes that share it, of zeroes.
class SharedBytes {
 public:
  explicit SharedBytes(std::size_t bytes) : size_(bytes) {
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::runtime_error("mmap failed");
  }
  SharedBytes(const SharedBytes&) = delete;
  SharedBytes& operator=(const SharedBytes&) = delete;
  ~SharedBytes() { ::munmap(data_, size_); }

  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), size_}; }

 private:
  void* data_;
  std::size_t size_;
};

inline int stamps_left = -1;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

/// In a child: dies at the stamp of this number, from 0; never when it is negative.
inline void DieAtStamp(int number) {
  stamps_left = number;
  learn::at_stamp = [] {
    if (stamps_left-- == 0) ::raise(SIGKILL);
  };
}

/// Runs `body` in a child that is killed at a stamp; says whether it came to its end before.
inline bool RunAndDie(int stamp, const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    DieAtStamp(stamp);
    try {
      body();
    } catch (...) {
      ::_exit(2);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return false;
  throw std::runtime_error("the child failed");
}

}  // namespace orca::testing
