#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "io/strict_json.h"
#include "io/tensor_types.h"
#include "orca/core/error.h"
#include "orca/io/safetensors.h"

namespace orca::io {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kPrefix = sizeof(std::uint64_t);
constexpr std::size_t kMaxHeader = 100'000'000;
constexpr int kMaxDepth = 3;  // the file, a tensor, its shape

class Damage {
 public:
  explicit Damage(const Path& path) : path_(path) {}
  [[noreturn]] void Throw(const std::string& why) const {
    throw Error(Code::kUnavailable, fmt::format("{} is damaged: {}", path_.string(), why));
  }

 private:
  const Path& path_;
};

/// A tensor's description, and where it says that its data are.
struct Entry {
  TensorSpec spec;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

std::optional<std::vector<std::uint64_t>> Numbers(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array()) return std::nullopt;
  std::vector<std::uint64_t> numbers;
  for (const Json& number : *found) {
    if (!number.is_number_unsigned()) return std::nullopt;
    numbers.push_back(number.get<std::uint64_t>());
  }
  return numbers;
}

TensorType ReadType(const Json& json, const std::string& name, const Path& path) {
  const auto found = json.find("dtype");
  const std::string stored =
      found != json.end() && found->is_string() ? found->get<std::string>() : "";
  const auto known = std::ranges::find(kTensorTypes, stored, &TensorTypeInfo::stored);
  if (known != kTensorTypes.end()) return known->type;
  throw Error(Code::kUnavailable,
              fmt::format("tensor '{}' of {} has the type '{}', which this release does not know",
                          name, path.string(), stored));
}

Entry ReadEntry(const std::string& name, const Json& json, const Path& path) {
  const Damage damage(path);
  if (!json.is_object()) damage.Throw(fmt::format("tensor '{}' is not described", name));
  Entry entry{.spec = {.name = name, .type = ReadType(json, name, path), .shape = {}}};
  const auto shape = Numbers(json, "shape");
  const auto offsets = Numbers(json, "data_offsets");
  if (!shape || !offsets || offsets->size() != 2)
    damage.Throw(fmt::format("tensor '{}' lacks a shape or offsets", name));
  for (const std::uint64_t extent : *shape) {
    if (extent > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      damage.Throw(fmt::format("tensor '{}' has a dimension of {}", name, extent));
    entry.spec.shape.push_back(static_cast<std::int64_t>(extent));
  }
  entry.begin = offsets->at(0);
  entry.end = offsets->at(1);
  const auto bytes = ByteSize(entry.spec.type, entry.spec.shape);
  if (!bytes || entry.end < entry.begin || entry.end - entry.begin != *bytes) {
    damage.Throw(fmt::format("tensor '{}' is {}, but its data are at {} to {}", name,
                             Describe(entry.spec), entry.begin, entry.end));
  }
  return entry;
}

// Every byte of the data belongs to one tensor.
void CheckPlaces(const std::vector<Entry>& entries, std::uint64_t size, const Damage& damage) {
  std::uint64_t at = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != at) {
      damage.Throw(
          fmt::format("tensor '{}' begins at {} of the data, but the one before ends at {}",
                      entry.spec.name, entry.begin, at));
    }
    at = entry.end;
    if (at > size) {
      damage.Throw(fmt::format("tensor '{}' ends at {} of the data, of which there are {} bytes",
                               entry.spec.name, at, size));
    }
  }
  if (at != size)
    damage.Throw(
        fmt::format("its tensors end at {} of the data, of which there are {} bytes", at, size));
}

Metadata ReadMetadata(const Json& json, const Damage& damage) {
  Metadata metadata;
  if (!json.is_object()) damage.Throw("its metadata are no texts");
  for (const auto& [key, text] : json.items()) {
    if (!text.is_string()) damage.Throw(fmt::format("'{}' of its metadata is no text", key));
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

}  // namespace

SafetensorsFile SafetensorsFile::Open(const Path& path, FileSystem& files) {
  return Parse(path, files.Map(path));
}

SafetensorsFile SafetensorsFile::Parse(const Path& path, FileView view) {
  const Damage damage(path);
  SafetensorsFile file;
  file.path_ = path;
  file.view_ = std::move(view);
  const auto bytes = file.view_.bytes;
  std::uint64_t length = 0;
  if (bytes.size() < kPrefix) damage.Throw(fmt::format("it has {} bytes", bytes.size()));
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > kMaxHeader || length > bytes.size() - kPrefix)
    damage.Throw(fmt::format("it announces a header of {} bytes and has {} in all; the limit is {}",
                             length, bytes.size(), kMaxHeader));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kPrefix, length);
  const auto header = ParseStrictJson(text, kMaxDepth);
  if (!text.starts_with('{') || !header || !header->is_object())
    damage.Throw("its header cannot be read, or names a tensor twice");
  file.data_offset_ = kPrefix + length;

  std::vector<Entry> entries;
  for (const auto& [name, json] : header->items()) {
    if (name == "__metadata__") {
      file.metadata_ = ReadMetadata(json, damage);
    } else {
      entries.push_back(ReadEntry(name, json, path));
    }
  }
  std::ranges::stable_sort(entries, {},
                           [](const Entry& entry) { return std::pair(entry.begin, entry.end); });
  const auto data = bytes.subspan(file.data_offset_);
  CheckPlaces(entries, data.size(), damage);
  for (Entry& entry : entries) {
    file.tensors_.push_back({.spec = std::move(entry.spec),
                             .data = data.subspan(entry.begin, entry.end - entry.begin)});
  }
  return file;
}

const Tensor& SafetensorsFile::Find(std::string_view name) const {
  const auto found = std::ranges::find_if(
      tensors_, [name](const Tensor& tensor) { return tensor.spec.name == name; });
  if (found != tensors_.end()) return *found;
  throw Error(Code::kInvalidArgument,
              fmt::format("{} has no tensor '{}'; it has {}, the first is '{}'", path_.string(),
                          name, tensors_.size(), tensors_.empty() ? "" : tensors_[0].spec.name));
}

}  // namespace orca::io
