#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "orca/core/error.h"
#include "orca/core/memory_file.h"
#include "orca/core/shared_memory.h"

namespace orca {
namespace {

std::byte* MapOrThrow(int fd, std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    throw Error(
        Code::kResourceExhausted,
        fmt::format("cannot map {} bytes of shared memory: {}; free address space or memory", bytes,
                    std::strerror(errno)));
  }
  return static_cast<std::byte*>(data);
}

}  // namespace

SharedMemory SharedMemory::Create(const std::string& label, std::size_t bytes) {
  UniqueFd fd = MakeMemoryFile(label, bytes);
  std::byte* data = MapOrThrow(fd.get(), bytes);
  return SharedMemory(std::move(fd), data, bytes);
}

SharedMemory SharedMemory::Map(UniqueFd fd, std::size_t bytes) {
  struct stat info {};
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (::fstat(fd.get(), &info) != 0 || static_cast<std::size_t>(info.st_size) != bytes ||
      seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    throw Error(
        Code::kPeerLost,
        fmt::format(
            "a peer handed over {} bytes of shared memory where {} sealed ones were expected",
            info.st_size, bytes));
  }
  // The mapping keeps the memory; ranks that map hundreds of peers' segments save the descriptors.
  return SharedMemory(UniqueFd(), MapOrThrow(fd.get(), bytes), bytes);
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(data_, size_);
    fd_ = std::move(other.fd_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace orca
