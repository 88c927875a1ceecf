#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/memory_file.h"

namespace orca {
namespace {

constexpr std::size_t kSlice = std::size_t{1} << 20;
// Below this, starting a thread takes longer than what it saves.
constexpr std::size_t kParallelFrom = std::size_t{8} << 20;
// More do not make the memory faster.
constexpr std::size_t kMaxThreads = 8;

// The error of the write that failed; 0 when none did.
int WriteAll(int fd, FilePiece piece) {
  while (!piece.data.empty()) {
    const ssize_t done =
        ::pwrite(fd, piece.data.data(), piece.data.size(), static_cast<off_t>(piece.at));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return done < 0 ? errno : ENOSPC;
    piece.data = piece.data.subspan(static_cast<std::size_t>(done));
    piece.at += static_cast<std::size_t>(done);
  }
  return 0;
}

}  // namespace

UniqueFd MakeMemoryFile(const std::string& label, std::size_t bytes) {
  UniqueFd fd(::memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw Error(Code::kResourceExhausted,
                fmt::format("cannot make {} of shared memory: {}", HumanBytes(bytes),
                            DescribeLimitError(errno)));
  }
  return fd;
}

std::size_t CheckMemoryFile(int fd) {
  struct stat info {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd, &info) != 0) {
    throw Error(Code::kPeerLost, "another process handed over memory that is not sealed");
  }
  return static_cast<std::size_t>(info.st_size);
}

UniqueFd OpenReadOnly(int fd) {
  UniqueFd opened(::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened) {
    throw Error(Code::kResourceExhausted, fmt::format("cannot open shared memory for reading: {}",
                                                      DescribeLimitError(errno)));
  }
  return opened;
}

void WriteMemoryFile(int fd, std::span<const FilePiece> pieces) {
  std::size_t total = 0;
  for (const FilePiece& piece : pieces) total += piece.data.size();
  std::vector<FilePiece> slices;
  if (total >= kParallelFrom) {
    for (const FilePiece& piece : pieces) {
      for (std::size_t at = 0; at < piece.data.size(); at += kSlice) {
        const std::size_t bytes = std::min(kSlice, piece.data.size() - at);
        slices.push_back({piece.data.subspan(at, bytes), piece.at + at});
      }
    }
    pieces = slices;
  }
  std::atomic<std::size_t> next = 0;
  std::atomic<int> error = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < pieces.size() && error == 0; i = next++)
      if (const int failed = WriteAll(fd, pieces[i]); failed != 0) error = failed;
  };
  {
    const std::size_t helpers =
        slices.empty() ? 0 : std::min(kMaxThreads, AllowedCpus().count()) - 1;
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < helpers; ++i) threads.emplace_back(work);
    work();
  }
  if (error != 0) {
    throw Error(Code::kResourceExhausted,
                fmt::format("cannot fill shared memory: {}", DescribeLimitError(error)));
  }
}

PrivateMapping::PrivateMapping(int fd, std::size_t size) : size_(size) {
  void* const memory =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) {
    throw Error(Code::kResourceExhausted,
                fmt::format("cannot map {}: {}", HumanBytes(size), std::strerror(errno)));
  }
  data_ = static_cast<std::byte*>(memory);
}

PrivateMapping::~PrivateMapping() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace orca
