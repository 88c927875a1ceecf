#include <zlib.h>

#include <algorithm>
#include <bit>

#include "io/zip_file.h"
#include "io/zip_layout.h"

namespace orca::io {
namespace {

constexpr std::uint64_t kAlign = 64;    // as torch aligns, for mmap=True
constexpr std::uint16_t kVersion = 45;  // of the format: the first with 64-bit numbers

template <typename T>
void Put(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::uint32_t Narrow(std::uint64_t value) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(value, zip::kIsWide));
}

}  // namespace

void ZipWriter::Write(std::span<const std::byte> data) {
  sink_(data);
  size_ += data.size();
}

void ZipWriter::Add(const std::string& name, std::span<const std::byte> data) {
  const auto crc = static_cast<std::uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(data.data()), data.size()));
  const Entry& entry =
      entries_.emplace_back(Entry{.name = name, .crc = crc, .size = data.size(), .at = size_});
  std::string extra;
  if (entry.size >= zip::kIsWide) {
    Put(extra, zip::kWideField);
    Put(extra, std::uint16_t{2 * sizeof entry.size});
    Put(extra, entry.size);
    Put(extra, entry.size);
  }
  const std::uint64_t head = entry.at + zip::kHeaderBytes + name.size() + extra.size() + 4;
  const std::uint64_t padding = (kAlign - head % kAlign) % kAlign;
  Put(extra, zip::kPaddingField);
  Put(extra, static_cast<std::uint16_t>(padding));
  extra.append(padding, 'Z');

  std::string header;
  Put(header, zip::kHeader);
  Put(header, kVersion);
  Put(header, std::uint16_t{0});  // flags
  Put(header, zip::kStored);
  Put(header, std::uint32_t{0});  // time and date
  Put(header, crc);
  Put(header, Narrow(entry.size));
  Put(header, Narrow(entry.size));
  Put(header, static_cast<std::uint16_t>(name.size()));
  Put(header, static_cast<std::uint16_t>(extra.size()));
  Write(header + name + extra);
  Write(data);
}

void ZipWriter::Finish() {
  const std::uint64_t begin = size_;
  std::string out;
  for (const Entry& entry : entries_) {
    std::string extra;
    if (entry.size >= zip::kIsWide || entry.at >= zip::kIsWide) {
      std::string numbers;
      if (entry.size >= zip::kIsWide) {
        Put(numbers, entry.size);
        Put(numbers, entry.size);
      }
      if (entry.at >= zip::kIsWide) Put(numbers, entry.at);
      Put(extra, zip::kWideField);
      Put(extra, static_cast<std::uint16_t>(numbers.size()));
      extra += numbers;
    }
    Put(out, zip::kEntry);
    Put(out, kVersion);
    Put(out, kVersion);
    Put(out, std::uint16_t{0});  // flags
    Put(out, zip::kStored);
    Put(out, std::uint32_t{0});  // time and date
    Put(out, entry.crc);
    Put(out, Narrow(entry.size));
    Put(out, Narrow(entry.size));
    Put(out, static_cast<std::uint16_t>(entry.name.size()));
    Put(out, static_cast<std::uint16_t>(extra.size()));
    Put(out, std::uint16_t{0});  // comment
    Put(out, std::uint16_t{0});  // disk
    Put(out, std::uint16_t{0});  // attributes
    Put(out, std::uint32_t{0});
    Put(out, Narrow(entry.at));
    out += entry.name + extra;
  }
  const std::uint64_t size = out.size();
  const std::uint64_t count = entries_.size();
  Put(out, zip::kWideEnd);
  Put(out, std::uint64_t{zip::kWideEndBytes - 12});  // what follows of it
  Put(out, kVersion);
  Put(out, kVersion);
  Put(out, std::uint64_t{0});  // disks
  Put(out, count);
  Put(out, count);
  Put(out, size);
  Put(out, begin);
  Put(out, zip::kWideLocator);
  Put(out, std::uint32_t{0});  // disk
  Put(out, begin + size);
  Put(out, std::uint32_t{1});  // disks
  const auto short_count =
      static_cast<std::uint16_t>(std::min<std::uint64_t>(count, zip::kIsWideCount));
  Put(out, zip::kEnd);
  Put(out, std::uint32_t{0});  // disks
  Put(out, short_count);
  Put(out, short_count);
  Put(out, Narrow(size));
  Put(out, Narrow(begin));
  Put(out, std::uint16_t{0});  // comment
  Write(out);
}

}  // namespace orca::io
