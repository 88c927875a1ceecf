#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/runtime/parcel.h"

namespace orca::runtime {
namespace {

// Layout: magic, number of parts, their sizes, all u64; then the parts, each aligned.
constexpr std::uint64_t kMagic = 0x314c43524143524fULL;  // "ORCARCL1"
constexpr std::size_t kAlign = 64;
constexpr std::size_t kMaxParts = std::size_t{1} << 20;

std::size_t Aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

[[noreturn]] void ThrowDamaged(const char* why) {
  throw Error(Code::kPeerLost, fmt::format("a process sent a damaged parcel: {}", why));
}

UniqueFd NewMemory(std::size_t bytes) {
  CheckMemoryFor(bytes, "a function's arguments or results");
  UniqueFd fd(::memfd_create("orca-parcel", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    throw Error(Code::kResourceExhausted,
                fmt::format("cannot make {} of shared memory: {}", HumanBytes(bytes),
                            DescribeLimitError(errno)));
  }
  ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return fd;
}

// write(2) makes fresh pages faster than touching a mapping does.
void WriteAt(int fd, std::span<const std::byte> data, std::size_t at) {
  while (!data.empty()) {
    const ssize_t done = ::pwrite(fd, data.data(), data.size(), static_cast<off_t>(at));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      throw Error(Code::kResourceExhausted,
                  fmt::format("cannot fill shared memory: {}", DescribeLimitError(errno)));
    }
    data = data.subspan(static_cast<std::size_t>(done));
    at += static_cast<std::size_t>(done);
  }
}

}  // namespace

struct Parcel::Content {
  ~Content() {
    if (mapped != nullptr) ::munmap(mapped, size);
  }

  std::span<std::byte> Map() {
    if (!fd) return inside;
    const std::lock_guard lock(mutex);
    if (mapped == nullptr) {
      void* const memory =
          ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd.get(), 0);
      if (memory == MAP_FAILED) {
        throw Error(Code::kResourceExhausted,
                    fmt::format("cannot map {}: {}", HumanBytes(size), std::strerror(errno)));
      }
      mapped = static_cast<std::byte*>(memory);
    }
    return {mapped, size};
  }

  std::vector<std::byte> inside;
  UniqueFd fd;
  std::size_t size = 0;
  std::mutex mutex;  // guards mapped
  std::byte* mapped = nullptr;
};

Parcel Parcel::Pack(std::span<const std::span<const std::byte>> parts) {
  std::vector<std::uint64_t> head{kMagic, parts.size()};
  for (const auto& part : parts) head.push_back(part.size());
  const auto head_bytes = std::as_bytes(std::span(head));
  std::size_t size = head_bytes.size();
  for (const auto& part : parts) size = Aligned(size) + part.size();
  auto content = std::make_shared<Content>();
  content->size = size;
  const bool is_short = size <= kInlineBytes;
  if (is_short) {
    content->inside.resize(size);
  } else {
    content->fd = NewMemory(size);
  }
  const auto put = [&](std::span<const std::byte> data, std::size_t at) {
    if (is_short) {
      std::copy(data.begin(), data.end(), content->inside.begin() + static_cast<ssize_t>(at));
    } else {
      WriteAt(content->fd.get(), data, at);
    }
  };
  put(head_bytes, 0);
  std::size_t at = head_bytes.size();
  for (const auto& part : parts) {
    at = Aligned(at);
    put(part, at);
    at += part.size();
  }
  return Parcel(std::move(content));
}

Parcel Parcel::FromBytes(std::vector<std::byte> bytes) {
  auto content = std::make_shared<Content>();
  content->size = bytes.size();
  content->inside = std::move(bytes);
  return Parcel(std::move(content));
}

Parcel Parcel::FromFd(UniqueFd fd, std::size_t size) {
  struct stat info {};
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (size == 0 || ::fstat(fd.get(), &info) != 0 || static_cast<std::size_t>(info.st_size) < size ||
      seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    ThrowDamaged("its memory can shrink or is shorter than announced");
  }
  auto content = std::make_shared<Content>();
  content->size = size;
  // Opened again, so that whoever gets the descriptor from here can read and nothing else.
  content->fd =
      UniqueFd(::open(fmt::format("/proc/self/fd/{}", fd.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!content->fd) content->fd = std::move(fd);
  return Parcel(std::move(content));
}

Parcel::Builder::Builder(std::size_t size) : size_(size) {
  if (size > kInlineBytes) fd_ = NewMemory(size);
}

void Parcel::Builder::Append(std::span<const std::byte> piece) {
  if (piece.size() > size_ - done_) ThrowDamaged("it is longer than announced");
  if (fd_) {
    WriteAt(fd_.get(), piece, done_);
  } else {
    inside_.insert(inside_.end(), piece.begin(), piece.end());
  }
  done_ += piece.size();
}

Parcel Parcel::Builder::Take() {
  return fd_ ? FromFd(std::move(fd_), size_) : FromBytes(std::move(inside_));
}

std::size_t Parcel::size() const { return content_ ? content_->size : 0; }
int Parcel::fd() const { return content_ ? content_->fd.get() : -1; }

std::span<const std::byte> Parcel::bytes() const {
  return content_ ? content_->Map() : std::span<std::byte>();
}

std::vector<std::span<std::byte>> Parcel::Parts() const {
  if (!content_) return {};
  const std::span<std::byte> all = content_->Map();
  std::uint64_t begin[2] = {};
  if (all.size() < sizeof begin) ThrowDamaged("it is too short");
  std::memcpy(begin, all.data(), sizeof begin);
  const std::uint64_t count = begin[1];
  if (begin[0] != kMagic) ThrowDamaged("it does not begin like one");
  if (count > kMaxParts || all.size() < sizeof begin + count * sizeof(std::uint64_t)) {
    ThrowDamaged("it announces more parts than it holds");
  }
  std::vector<std::uint64_t> sizes(count);
  if (count > 0) std::memcpy(sizes.data(), all.data() + sizeof begin, count * sizeof sizes[0]);
  std::vector<std::span<std::byte>> parts;
  std::size_t at = sizeof begin + count * sizeof sizes[0];
  for (const std::uint64_t size : sizes) {
    at = Aligned(at);
    if (at > all.size() || size > all.size() - at) ThrowDamaged("a part lies outside of it");
    parts.push_back(all.subspan(at, size));
    at += size;
  }
  return parts;
}

}  // namespace orca::runtime
