#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/memory_file.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

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
// File systems that are memory themselves.
constexpr unsigned long kTmpfs = 0x01021994;
constexpr unsigned long kRamfs = 0x858458f6;

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

// What is larger than a cache need not be read into it before it is written: that is a third of
// what moves through the memory otherwise, and memcpy(3) does it for whole files, not for pieces of
// them.
void CopyPastCache(std::byte* to, std::span<const std::byte> from) {
  std::size_t done = 0;
#ifdef __SSE2__
  constexpr std::size_t kLine = 64;
  if (reinterpret_cast<std::uintptr_t>(to) % kLine == 0) {
    for (; done + kLine <= from.size(); done += kLine) {
      const auto* const source = reinterpret_cast<const __m128i*>(from.data() + done);
      auto* const target = reinterpret_cast<__m128i*>(to + done);
      const __m128i a = _mm_loadu_si128(source);
      const __m128i b = _mm_loadu_si128(source + 1);
      const __m128i c = _mm_loadu_si128(source + 2);
      const __m128i d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, a);
      _mm_stream_si128(target + 1, b);
      _mm_stream_si128(target + 2, c);
      _mm_stream_si128(target + 3, d);
    }
    _mm_sfence();
  }
#endif
  std::memcpy(to + done, from.data() + done, from.size() - done);
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
      CopyPastCache(mapped_ + piece.at, piece.data);
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

bool Follows(const FilePiece& piece, const FilePiece& last) {
  return last.at + last.data.size() == piece.at &&
         last.data.data() + last.data.size() == piece.data.data();
}

// At the borders of huge pages. Neighbours in memory and in the file become one: pages that two
// writes share cost twice.
std::vector<FilePiece> Cut(std::span<const FilePiece> pieces) {
  std::vector<FilePiece> slices;
  for (FilePiece piece : pieces) {
    while (!piece.data.empty()) {
      const std::size_t bytes = std::min(kHuge - piece.at % kHuge, piece.data.size());
      if (piece.at % kHuge != 0 && !slices.empty() && Follows(piece, slices.back())) {
        FilePiece& last = slices.back();
        last.data = {last.data.data(), last.data.size() + bytes};
      } else {
        slices.push_back({piece.data.first(bytes), piece.at});
      }
      piece = {piece.data.subspan(bytes), piece.at + bytes};
    }
  }
  return slices;
}

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> SpillFolders() {
  if (const std::string own = Variable("ORCA_SPILL"); !own.empty()) return {own};
  std::vector<std::string> folders;
  const std::string home = Variable("HOME");
  const std::string orca = Variable("ORCA_HOME");
  if (!orca.empty() || !home.empty()) folders.push_back(orca.empty() ? home + "/.orca" : orca);
  if (const std::string temporary = Variable("TMPDIR"); !temporary.empty())
    folders.push_back(temporary);
  folders.emplace_back("/var/tmp");
  return folders;
}

// A file that loses its name at once, where a file system makes none without. Who is killed in
// between leaves an empty one.
UniqueFd OpenAndRemove(const std::string& folder, std::string& why) {
  std::string path = folder + "/.orca-spill-XXXXXX";
  UniqueFd fd(::mkostemp(path.data(), O_CLOEXEC));
  struct stat info {};
  if (!fd || ::unlink(path.c_str()) != 0 || ::fstat(fd.get(), &info) != 0) {
    why = DescribeLimitError(errno);
    return {};
  }
  if (info.st_nlink == 0) return fd;
  // NFS gives it another name, which stays behind when the machine dies.
  why = "its file system keeps the names of files that are in use";
  return {};
}

UniqueFd OpenWithoutName(const std::string& folder, std::string& why) {
  UniqueFd fd(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600));
  if (fd) return fd;
  const bool has_none = errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL;
  if (has_none) return OpenAndRemove(folder, why);
  why = DescribeLimitError(errno);
  return {};
}

// The file, or why there is none.
UniqueFd TryDiskFile(const std::string& folder, std::size_t bytes, std::string& why) {
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  UniqueFd fd = OpenWithoutName(folder, why);
  if (!fd) return {};
  struct statfs system {};
  struct statvfs room {};
  if (::fstatfs(fd.get(), &system) != 0 || ::fstatvfs(fd.get(), &room) != 0) {
    why = std::strerror(errno);
    return {};
  }
  const auto kind = static_cast<unsigned long>(system.f_type);
  if (kind == kTmpfs || kind == kRamfs) {
    why = "it is in memory itself";
    return {};
  }
  // Some file systems fill the disk before they say that it is too small.
  const std::size_t left = static_cast<std::size_t>(room.f_bavail) * room.f_frsize;
  if (bytes > left) {
    why = fmt::format("{} are left there", HumanBytes(left));
    return {};
  }
  const auto size = static_cast<off_t>(bytes);
  const bool taken = ::fallocate(fd.get(), 0, 0, size) == 0 ||
                     (errno == EOPNOTSUPP && ::ftruncate(fd.get(), size) == 0);
  if (taken) return fd;
  why = std::strerror(errno);
  return {};
}

// Dirty pages are on their way to the disk before they are many: only clean ones are free at once.
void StartWriting(int fd, const FilePiece& piece) {
  ::sync_file_range(fd, static_cast<off_t>(piece.at), static_cast<off_t>(piece.data.size()),
                    SYNC_FILE_RANGE_WRITE);
}

}  // namespace

DiskFile MakeDiskFile(std::size_t bytes, const std::string& folder) {
  std::string reasons;
  for (const std::string& tried : folder.empty() ? SpillFolders() : std::vector{folder}) {
    std::string why;
    if (UniqueFd fd = TryDiskFile(tried, bytes, why)) return {std::move(fd), tried};
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", tried, why);
  }
  throw Error(Code::kResourceExhausted,
              fmt::format("no file can take {} ({}); set ORCA_SPILL to a folder of a disk that has "
                          "room",
                          HumanBytes(bytes), reasons));
}

bool IsInMemory(int fd) { return ::fcntl(fd, F_GET_SEALS) >= 0; }

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
  const bool is_sealed = seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
  const bool is_known = ::fstat(fd, &info) == 0;
  // Nobody outside of this user's own processes can reach a file without a name.
  const bool is_spilled = is_known && seals < 0 && S_ISREG(info.st_mode) && info.st_nlink == 0 &&
                          info.st_uid == ::geteuid();
  if (!is_known || (!is_sealed && !is_spilled))
    throw Error(Code::kPeerLost, "another process handed over memory that is not sealed");
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
  const bool in_memory = IsInMemory(fd);
  const bool is_much = in_memory && total >= kParallelFrom;
  const Filling file(fd, is_much ? CheckMemoryFile(fd) : 0);
  const std::vector<FilePiece> slices = Cut(pieces);
  std::atomic<std::size_t> next = 0;
  std::atomic<int> error = 0;
  const auto work = [&](Filling::Way way) {
    for (std::size_t i = next++; i < slices.size() && error == 0; i = next++) {
      if (const int failed = file.Fill(slices[i], way); failed != 0) error = failed;
      if (!in_memory) StartWriting(fd, slices[i]);
    }
  };
  {
    std::vector<std::jthread> threads;
    const std::size_t helpers = is_much ? std::min(kMaxThreads, AllowedCpus().count()) - 1 : 0;
    for (std::size_t i = 0; i < helpers; ++i)
      threads.push_back(
          StartThread([&work](const std::stop_token&) { work(Filling::Way::kTouch); }));
    work(Filling::Way::kWrite);
  }
  if (error != 0) {
    throw Error(Code::kResourceExhausted,
                fmt::format("cannot fill {}: {}", in_memory ? "shared memory" : "a shard's file",
                            DescribeLimitError(error)));
  }
}

void AskForPages(const std::byte* begin, std::size_t bytes) {
  const auto before = reinterpret_cast<std::uintptr_t>(begin) % kPage;
  ::madvise(const_cast<std::byte*>(begin - before), bytes + before, MADV_WILLNEED);
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
