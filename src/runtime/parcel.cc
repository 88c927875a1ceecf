#include "orca/runtime/parcel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/memory_file.h"

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
  return MakeMemoryFile("orca-parcel", bytes);
}

}  // namespace

struct Parcel::Content {
  std::span<std::byte> Map() {
    if (!fd) return inside;
    const std::lock_guard lock(mutex);
    if (mapped.data() == nullptr) mapped = PrivateMapping(fd.get(), size);
    return {mapped.data(), size};
  }

  std::vector<std::byte> inside;
  UniqueFd fd;
  std::size_t size = 0;
  std::mutex mutex;  // guards mapped
  PrivateMapping mapped;
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
  std::vector<FilePiece> pieces{{head_bytes, 0}};
  std::size_t at = head_bytes.size();
  for (const auto& part : parts) {
    at = Aligned(at);
    pieces.push_back({part, at});
    at += part.size();
  }
  if (!is_short) {
    WriteMemoryFile(content->fd.get(), pieces);
  } else {
    for (const FilePiece& piece : pieces)
      std::ranges::copy(piece.data, content->inside.begin() + static_cast<ssize_t>(piece.at));
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
  if (size == 0 || CheckMemoryFile(fd.get()) < size)
    ThrowDamaged("its memory is shorter than announced");
  auto content = std::make_shared<Content>();
  content->size = size;
  content->fd = OpenReadOnly(fd.get());
  return Parcel(std::move(content));
}

// A shard of another node may be larger than the memory that is left.
Parcel::Builder::Builder(std::size_t size) : size_(size) {
  if (size <= kInlineBytes) return;
  fd_ = size <= AvailableMemory().bytes ? NewMemory(size) : MakeDiskFile(size).fd;
}

void Parcel::Builder::Append(std::span<const std::byte> piece) {
  if (piece.size() > size_ - done_) ThrowDamaged("it is longer than announced");
  if (fd_) {
    const FilePiece next{piece, done_};
    WriteMemoryFile(fd_.get(), std::span(&next, 1));
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

UniqueFd Parcel::ToFile() const {
  if (fd() >= 0) return OpenReadOnly(fd());
  const FilePiece all{bytes(), 0};
  const UniqueFd file = NewMemory(size());
  WriteMemoryFile(file.get(), std::span(&all, 1));
  return OpenReadOnly(file.get());
}

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
