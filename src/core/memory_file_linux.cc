#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/memory_file.h"

namespace orca {
namespace {

// A huge page: 512 small ones that are taken, cleared and mapped at once.
constexpr std::size_t kHuge = std::size_t{2} << 20;
constexpr std::size_t kPage = 4096;
// Below this, starting a thread and mapping the file take longer than what they save.
constexpr std::size_t kParallelFrom = std::size_t{8} << 20;
// More do not make the memory faster.
constexpr std::size_t kMaxThreads = 8;
// MADV_COLLAPSE, which not all headers have yet.
constexpr int kCollapse = 25;

std::byte* AlignUp(std::byte* address) {
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  return address + (kHuge - number % kHuge) % kHuge;
}

// Maps a file where a huge page of it can be mapped as one; null when that fails.
std::byte* MapAligned(int fd, std::size_t size, int flags) {
  const std::size_t room = size + kHuge;
  void* const reserved =
      ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(reserved);
  std::byte* const wanted = AlignUp(begin);
  void* const mapped = ::mmap(wanted, size, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    ::munmap(begin, room);
    errno = error;
    return nullptr;
  }
  if (wanted > begin) ::munmap(begin, static_cast<std::size_t>(wanted - begin));
  std::byte* const end = wanted + (size + kPage - 1) / kPage * kPage;
  if (begin + room > end) ::munmap(end, static_cast<std::size_t>(begin + room - end));
  return wanted;
}

/// A file that is being filled. Where it has huge pages it is filled through a mapping: write(2)
/// copies small pages one by one, but makes fresh ones faster than touching a mapping does.
class Filling {
 public:
  Filling(int fd, std::size_t size) : fd_(fd), size_(size), huge_(size / kHuge, false) {
    if (huge_.empty()) return;
    mapped_ = MapAligned(fd, size, MAP_SHARED);
    if (mapped_ == nullptr) return;
    struct stat info {};
    const bool is_fresh =
        ::fstat(fd, &info) == 0 && static_cast<std::size_t>(info.st_blocks) * 512 < size / 2;
    if (is_fresh) {
      TakeHugePages();
    } else {
      huge_.assign(huge_.size(), HasHugePages());
    }
  }
  Filling(const Filling&) = delete;
  Filling& operator=(const Filling&) = delete;
  ~Filling() {
    if (mapped_ != nullptr) ::munmap(mapped_, size_);
  }

  /// How a piece gets into small pages. write(2) makes fresh ones faster than touching a mapping
  /// does, but of several threads only one at a time gets anywhere.
  enum class Way { kWrite, kTouch };

  /// Copies a piece that crosses no border of a huge page. 0, or the error.
  int Fill(FilePiece piece, Way way) const {
    const bool is_huge = piece.at / kHuge < huge_.size() && huge_[piece.at / kHuge];
    if (is_huge || (way == Way::kTouch && mapped_ != nullptr)) {
      std::memcpy(mapped_ + piece.at, piece.data.data(), piece.data.size());
      return 0;
    }
    while (!piece.data.empty()) {
      const ssize_t done =
          ::pwrite(fd_, piece.data.data(), piece.data.size(), static_cast<off_t>(piece.at));
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return done < 0 ? errno : ENOSPC;
      piece.data = piece.data.subspan(static_cast<std::size_t>(done));
      piece.at += static_cast<std::size_t>(done);
    }
    return 0;
  }

 private:
  // One small page each, and the kernel makes the rest; all in one call, since each makes every
  // processor empty its lists of pages. Where memory is in pieces, or the kernel is old, it fails.
  void TakeHugePages() {
    const std::byte nothing{0};
    for (std::size_t i = 0; i < huge_.size(); ++i)
      if (Fill({std::span(&nothing, 1), i * kHuge}, Way::kWrite) != 0) return;
    const bool taken = ::madvise(mapped_, huge_.size() * kHuge, kCollapse) == 0;
    huge_.assign(huge_.size(), taken);
  }

  // Whether the first pages come with one fault.
  bool HasHugePages() const {
    constexpr long kFew = 4;
    rusage before{};
    rusage after{};
    ::getrusage(RUSAGE_THREAD, &before);
    const volatile std::byte* const region = mapped_;
    for (std::size_t at = 0; at < kHuge; at += kPage) (void)region[at];
    ::getrusage(RUSAGE_THREAD, &after);
    return after.ru_minflt - before.ru_minflt <= kFew;
  }

  int fd_;
  std::size_t size_;
  std::byte* mapped_ = nullptr;
  std::vector<bool> huge_;
};

// At the borders of huge pages.
std::vector<FilePiece> Cut(std::span<const FilePiece> pieces) {
  std::vector<FilePiece> slices;
  for (FilePiece piece : pieces) {
    while (!piece.data.empty()) {
      const std::size_t bytes = std::min(kHuge - piece.at % kHuge, piece.data.size());
      slices.push_back({piece.data.first(bytes), piece.at});
      piece = {piece.data.subspan(bytes), piece.at + bytes};
    }
  }
  return slices;
}

}  // namespace

UniqueFd MakeMemoryFile(const std::string& label, std::size_t bytes) {
  // Not F_SEAL_WRITE: the kernel refuses it while a writable mapping exists.
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
  const bool is_much = total >= kParallelFrom;
  const Filling file(fd, is_much ? CheckMemoryFile(fd) : 0);
  const std::vector<FilePiece> slices = Cut(pieces);
  std::atomic<std::size_t> next = 0;
  std::atomic<int> error = 0;
  const auto work = [&](Filling::Way way) {
    for (std::size_t i = next++; i < slices.size() && error == 0; i = next++)
      if (const int failed = file.Fill(slices[i], way); failed != 0) error = failed;
  };
  {
    std::vector<std::jthread> threads;
    const std::size_t helpers = is_much ? std::min(kMaxThreads, AllowedCpus().count()) - 1 : 0;
    for (std::size_t i = 0; i < helpers; ++i) threads.emplace_back(work, Filling::Way::kTouch);
    work(Filling::Way::kWrite);
  }
  if (error != 0) {
    throw Error(Code::kResourceExhausted,
                fmt::format("cannot fill shared memory: {}", DescribeLimitError(error)));
  }
}

PrivateMapping::PrivateMapping(int fd, std::size_t size) : size_(size) {
  if (size >= kHuge) data_ = MapAligned(fd, size, MAP_PRIVATE | MAP_NORESERVE);
  if (data_ != nullptr) return;
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
