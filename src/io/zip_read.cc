#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "io/array_parsers.h"
#include "io/zip_file.h"
#include "io/zip_layout.h"
#include "orca/core/error.h"
#include "orca/io/torch_file.h"

namespace orca::io {

ZipReader::ZipReader(Path path, std::span<const std::byte> bytes)
    : path_(std::move(path)), bytes_(bytes) {
  ReadDirectory(FindDirectory());
}

void ZipReader::Damaged(std::uint64_t offset, const std::string& why) const {
  ThrowDamagedArray(path_, fmt::format("{} (offset {} of {})", why, offset, bytes_.size()));
}

std::span<const std::byte> ZipReader::Slice(std::uint64_t at, std::uint64_t size) const {
  if (at > bytes_.size() || size > bytes_.size() - at)
    Damaged(at, fmt::format("{} bytes should be there", size));
  return bytes_.subspan(at, size);
}

template <typename T>
T ZipReader::Load(std::uint64_t at) const {
  T value = 0;
  std::memcpy(&value, Slice(at, sizeof value).data(), sizeof value);
  return value;
}

// The end record comes last, before a comment of up to 64 KiB.
ZipReader::Directory ZipReader::FindDirectory() const {
  const std::uint64_t size = bytes_.size();
  if (size < zip::kEndBytes) Damaged(size, "it is shorter than any zip file");
  const std::uint64_t last = size - zip::kEndBytes;
  std::uint64_t end = last;
  while (Load<std::uint32_t>(end) != zip::kEnd || Load<std::uint16_t>(end + 20) != last - end) {
    if (end == 0 || last - end == 0xffff)
      Damaged(size, "it does not end like a zip file: it was cut off, or is none");
    --end;
  }
  Directory directory{.at = Load<std::uint32_t>(end + 16),
                      .size = Load<std::uint32_t>(end + 12),
                      .count = Load<std::uint16_t>(end + 10)};
  if (end >= zip::kWideLocatorBytes &&
      Load<std::uint32_t>(end - zip::kWideLocatorBytes) == zip::kWideLocator) {
    const auto wide = Load<std::uint64_t>(end - zip::kWideLocatorBytes + 8);
    (void)Slice(wide, zip::kWideEndBytes);
    if (Load<std::uint32_t>(wide) != zip::kWideEnd) Damaged(wide, "its 64-bit end record is gone");
    directory = {.at = Load<std::uint64_t>(wide + 48),
                 .size = Load<std::uint64_t>(wide + 40),
                 .count = Load<std::uint64_t>(wide + 32)};
  }
  return directory;
}

void ZipReader::ReadDirectory(const Directory& directory) {
  (void)Slice(directory.at, directory.size);
  const std::uint64_t end = directory.at + directory.size;
  std::uint64_t at = directory.at;
  std::uint64_t count = 0;
  for (; at < end; ++count) {
    if (end - at < zip::kEntryBytes || Load<std::uint32_t>(at) != zip::kEntry)
      Damaged(at, "its directory has no entry where one should begin");
    Entry entry{.at = Load<std::uint32_t>(at + 42),
                .size = Load<std::uint32_t>(at + 24),
                .packed_size = Load<std::uint32_t>(at + 20),
                .crc = Load<std::uint32_t>(at + 16),
                .method = Load<std::uint16_t>(at + 10),
                .attributes = Load<std::uint32_t>(at + 38)};
    const auto name_size = Load<std::uint16_t>(at + 28);
    const auto extra_size = Load<std::uint16_t>(at + 30);
    const auto comment_size = Load<std::uint16_t>(at + 32);
    const std::uint64_t name_at = at + zip::kEntryBytes;
    const auto bytes = Slice(name_at, name_size);
    const std::string_view name(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    ReadWide(name_at + name_size, extra_size, entry);
    if (count == 0) first_name_ = name;
    // Readers would not agree which one is meant.
    if (!entries_.emplace(name, entry).second)
      Damaged(at, fmt::format("its directory names '{}' twice", name));
    at = name_at + name_size + extra_size + comment_size;
  }
  if (at != end || count != directory.count)
    Damaged(directory.at,
            fmt::format("its directory should have {} entries and has {}", directory.count, count));
}

// The extra field holds those numbers alone, in this order, that do not fit 32 bits.
void ZipReader::ReadWide(std::uint64_t at, std::uint64_t size, Entry& entry) const {
  (void)Slice(at, size);
  const std::uint64_t end = at + size;
  while (end - at >= 4) {
    const auto field = Load<std::uint16_t>(at);
    const std::uint64_t field_end = at + 4 + Load<std::uint16_t>(at + 2);
    if (field_end > end) Damaged(at, "an extra field of its directory is cut off");
    at += 4;
    if (field == zip::kWideField) {
      for (std::uint64_t* number : {&entry.size, &entry.packed_size, &entry.at}) {
        if (*number != zip::kIsWide) continue;
        if (field_end - at < sizeof *number)
          Damaged(at, "a 64-bit number of its directory is gone");
        *number = Load<std::uint64_t>(at);
        at += sizeof *number;
      }
    }
    at = field_end;
  }
}

// What stands before a record must say the same as the directory.
void ZipReader::CheckHeader(std::string_view name, const Entry& entry) const {
  (void)Slice(entry.at, zip::kHeaderBytes);
  const auto here = Slice(entry.at + zip::kHeaderBytes, Load<std::uint16_t>(entry.at + 26));
  if (Load<std::uint32_t>(entry.at) != zip::kHeader ||
      !std::ranges::equal(here, std::as_bytes(std::span(name))) ||
      Load<std::uint16_t>(entry.at + 8) != entry.method)
    Damaged(entry.at, fmt::format("record '{}' does not begin there", name));
  if (entry.method != zip::kStored) {
    throw Error(Code::kInvalidArgument,
                fmt::format("record '{}' of {} is compressed (method {}), as torch.save never does "
                            "it; load and save the file with torch",
                            name, path_.string(), entry.method));
  }
  if (entry.size != entry.packed_size)
    Damaged(entry.at, fmt::format("record '{}' has {} bytes, stored as {}", name, entry.size,
                                  entry.packed_size));
}

std::span<const std::byte> ZipReader::Read(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) Damaged(bytes_.size(), fmt::format("it has no record '{}'", name));
  const Entry& entry = found->second;
  CheckHeader(name, entry);
  const std::uint64_t at = entry.at + zip::kHeaderBytes + Load<std::uint16_t>(entry.at + 26) +
                           Load<std::uint16_t>(entry.at + 28);
  const auto data = Slice(at, entry.size);
  if (entry.crc == 0) return data;
  const auto crc = static_cast<std::uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(data.data()), data.size()));
  if (crc != entry.crc)
    Damaged(at, fmt::format("the {} bytes of record '{}' have the checksum {:08x} instead of "
                            "{:08x}",
                            data.size(), name, crc, entry.crc));
  return data;
}

void ZipReader::Check() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, entry] : entries_) {
    // torch leaves the memory of such a record as it is, and says nothing.
    if ((entry.attributes & zip::kFolderAttribute) != 0)
      Damaged(entry.at, fmt::format("record '{}' is marked as a folder", name));
    // Records that overlap could stand for more bytes than anyone can wait for.
    if (__builtin_add_overflow(bytes, entry.size, &bytes) || bytes > bytes_.size())
      Damaged(entry.at, fmt::format("record '{}' overlaps another one", name));
    (void)Read(name);
  }
}

void CheckZipFile(const Path& path, FileSystem& files) {
  const FileView view = files.Map(path);
  ZipReader(path, view.bytes).Check();
}

}  // namespace orca::io
