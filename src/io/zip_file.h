// Zip archives whose records are stored as they are, small and beyond 4 GiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "orca/io/file_system.h"

namespace orca::io {

/// Finds the records of an archive in memory that somebody else keeps.
class ZipReader {
 public:
  /// Reads the directory. Throws kUnavailable when it is damaged; `path` is for messages.
  ZipReader(Path path, std::span<const std::byte> bytes);

  /// The name of the record that the directory lists first.
  std::string_view first_name() const { return first_name_; }
  bool Has(std::string_view name) const { return entries_.contains(name); }
  /// A view of a record. Its checksum is compared; one of 0 is none: torch can leave it out.
  /// Throws kUnavailable when it is missing or damaged, kInvalidArgument when it is compressed.
  std::span<const std::byte> Read(std::string_view name) const;
  /// Reads all records. Throws as Read does, and kUnavailable where other readers might skip one.
  void Check() const;

 private:
  struct Entry {
    std::uint64_t at = 0;  // of its own header
    std::uint64_t size = 0;
    std::uint64_t packed_size = 0;
    std::uint32_t crc = 0;
    std::uint16_t method = 0;
    std::uint32_t attributes = 0;
  };
  struct Directory {
    std::uint64_t at = 0;
    std::uint64_t size = 0;
    std::uint64_t count = 0;
  };

  [[noreturn]] void Damaged(std::uint64_t offset, const std::string& why) const;
  template <typename T>
  T Load(std::uint64_t at) const;
  std::span<const std::byte> Slice(std::uint64_t at, std::uint64_t size) const;
  Directory FindDirectory() const;
  void ReadDirectory(const Directory& directory);
  void ReadWide(std::uint64_t at, std::uint64_t size, Entry& entry) const;
  void CheckHeader(std::string_view name, const Entry& entry) const;

  Path path_;
  std::span<const std::byte> bytes_;
  std::string_view first_name_;
  std::unordered_map<std::string_view, Entry> entries_;
};

/// Takes the bytes of a file, one piece after the other.
using ByteSink = std::function<void(std::span<const std::byte>)>;

/// Writes an archive from the first byte of a file on. Every record begins at a multiple of 64.
class ZipWriter {
 public:
  explicit ZipWriter(ByteSink sink) : sink_(std::move(sink)) {}

  /// No two records may have the same name.
  void Add(const std::string& name, std::span<const std::byte> data);
  void Add(const std::string& name, std::string_view text) {
    Add(name, std::as_bytes(std::span(text)));
  }
  /// Writes the directory. Nothing may follow.
  void Finish();

 private:
  struct Entry {
    std::string name;
    std::uint32_t crc = 0;
    std::uint64_t size = 0;
    std::uint64_t at = 0;
  };

  void Write(std::span<const std::byte> data);
  void Write(std::string_view text) { Write(std::as_bytes(std::span(text))); }

  ByteSink sink_;
  std::uint64_t size_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace orca::io
