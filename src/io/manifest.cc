// {"crc32c":"89abcdef","checkpoint":{...,"fields":{...}}} and a line's end. This frame stays for
// ever, so that any release can tell a damaged manifest from one of a newer release.
#include "io/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/strict_json.h"
#include "orca/core/crc32c.h"
#include "orca/core/error.h"

namespace orca::io {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "orca-checkpoint";
constexpr std::string_view kBeforeCrc = "{\"crc32c\":\"";
constexpr std::size_t kCrcDigits = 8;
constexpr std::string_view kAfterCrc = "\",\"checkpoint\":";
constexpr std::string_view kEnd = "}\n";
constexpr std::string_view kFieldsKey = ",\"fields\":";
constexpr std::size_t kBodyAt = kBeforeCrc.size() + kCrcDigits + kAfterCrc.size();
constexpr int kMaxDepth = 200;
constexpr std::size_t kLongestPart = 100;

bool IsPartName(std::string_view part) {
  const auto is_good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !part.empty() && part.size() <= kLongestPart && part[0] != '.' &&
         std::ranges::all_of(part, is_good);
}

// nlohmann's own conversion takes negative numbers and fractions, too.
std::uint64_t Number(const Json& json, const char* key) {
  const Json& found = json.at(key);
  if (!found.is_number_unsigned())
    throw Error(Code::kUnavailable, fmt::format("its {} is no number", key));
  return found.get<std::uint64_t>();
}

std::string Hex(std::uint32_t crc) { return fmt::format("{:08x}", crc); }

std::uint32_t FromHex(const Json& json) {
  const auto& digits = json.get_ref<const std::string&>();
  std::uint32_t value = 0;
  if (digits.size() != kCrcDigits) throw Error(Code::kUnavailable, "a checksum is too short");
  for (const char digit : digits) {
    const std::size_t nibble = std::string_view("0123456789abcdef").find(digit);
    if (nibble == std::string_view::npos)
      throw Error(Code::kUnavailable, "a checksum is no number");
    value = (value << 4U) | static_cast<std::uint32_t>(nibble);
  }
  return value;
}

Json ToJson(const ManifestFile& file) {
  Json tensors = Json::array();
  for (const ManifestTensor& tensor : file.tensors) {
    tensors.push_back({{"name", tensor.spec.name},
                       {"dtype", Name(tensor.spec.type)},
                       {"shape", tensor.spec.shape},
                       {"offset", tensor.offset},
                       {"crc32c", Hex(tensor.crc)}});
  }
  return {{"part", file.part},
          {"bytes", file.bytes},
          {"crc32c", Hex(file.crc)},
          {"header_crc32c", Hex(file.header_crc)},
          {"tensors", std::move(tensors)}};
}

ManifestTensor ReadTensor(const Json& json) {
  ManifestTensor tensor;
  tensor.spec = {.name = json.at("name").get<std::string>(),
                 .type = TypeNamed(json.at("dtype").get_ref<const std::string&>()),
                 .shape = {}};
  for (const Json& extent : json.at("shape")) {
    if (!extent.is_number_unsigned()) throw Error(Code::kUnavailable, "a shape is no numbers");
    tensor.spec.shape.push_back(extent.get<std::int64_t>());
  }
  tensor.offset = Number(json, "offset");
  tensor.crc = FromHex(json.at("crc32c"));
  return tensor;
}

ManifestFile ReadFile(const Json& json) {
  ManifestFile file{.part = json.at("part").get<std::string>(),
                    .bytes = Number(json, "bytes"),
                    .crc = FromHex(json.at("crc32c")),
                    .header_crc = FromHex(json.at("header_crc32c")),
                    .tensors = {}};
  // Whoever wrote it must not make us read other folders.
  if (!IsPartName(file.part)) throw Error(Code::kUnavailable, "a part has an impossible name");
  for (const Json& tensor : json.at("tensors")) file.tensors.push_back(ReadTensor(tensor));
  return file;
}

// What follows the checksum: known when it is right.
std::string_view CheckedBody(std::string_view text, const Path& path) {
  const bool is_framed = text.size() > kBodyAt + kEnd.size() && text.starts_with(kBeforeCrc) &&
                         text.substr(kBeforeCrc.size() + kCrcDigits).starts_with(kAfterCrc) &&
                         text.ends_with(kEnd);
  if (!is_framed)
    throw Error(Code::kUnavailable,
                fmt::format("{} is damaged: it does not begin and end like a manifest ({} bytes)",
                            path.string(), text.size()));
  const std::string_view body = text.substr(kBodyAt, text.size() - kBodyAt - kEnd.size());
  const std::string_view said = text.substr(kBeforeCrc.size(), kCrcDigits);
  const std::string found = Hex(Crc32c(body.data(), body.size()));
  if (said != found)
    throw Error(Code::kUnavailable,
                fmt::format("{} is damaged: its checksum is {}, its {} bytes make {}",
                            path.string(), said, body.size(), found));
  return body;
}

Manifest ReadBody(const Json& json, std::string_view body) {
  Manifest manifest;
  manifest.progress = {.iteration = Number(json, "iteration"),
                       .epoch = Number(json, "epoch"),
                       .cursor = Number(json, "cursor")};
  for (const Json& file : json.at("files")) manifest.files.push_back(ReadFile(file));
  // Not from the parsed object: numbers of more than 64 bits would come back rounded.
  const std::uint64_t bytes = Number(json, "fields_bytes");
  if (bytes > body.size() - 1 || !json.at("fields").is_object())
    throw Error(Code::kUnavailable, "its fields are cut off");
  manifest.fields = body.substr(body.size() - 1 - bytes, bytes);
  const std::string_view before = body.substr(0, body.size() - 1 - bytes);
  if (!before.ends_with(kFieldsKey)) throw Error(Code::kUnavailable, "its fields are elsewhere");
  return manifest;
}

}  // namespace

void CheckPartName(const std::string& part) {
  if (IsPartName(part)) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("'{}' cannot name a part of a checkpoint; use up to {} letters, digits, "
                          "'.', '_' and '-', the first no '.'",
                          part, kLongestPart));
}

std::string EncodeManifest(const Manifest& manifest) {
  const auto fields = ParseStrictJson(manifest.fields, kMaxDepth - 1);
  if (!fields || !fields->is_object()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("the fields of a checkpoint are no JSON object of at most {} levels "
                            "with unique keys (NaN and Infinity are no JSON): {:.60}",
                            kMaxDepth - 1, manifest.fields));
  }
  Json files = Json::array();
  for (const ManifestFile& file : manifest.files) files.push_back(ToJson(file));
  const Json json = {{"format", kFormat},
                     {"version", kManifestVersion},
                     {"written_by", "orca " ORCA_VERSION},
                     {"iteration", manifest.progress.iteration},
                     {"epoch", manifest.progress.epoch},
                     {"cursor", manifest.progress.cursor},
                     {"files", std::move(files)},
                     {"fields_bytes", manifest.fields.size()}};
  std::string body = json.dump();
  body.pop_back();
  body += kFieldsKey;
  body += manifest.fields;
  body += '}';
  return fmt::format("{}{}{}{}{}", kBeforeCrc, Hex(Crc32c(body.data(), body.size())), kAfterCrc,
                     body, kEnd);
}

Manifest DecodeManifest(std::string_view text, const Path& path) {
  const std::string_view body = CheckedBody(text, path);
  const auto damaged = [&](const char* why) {
    return Error(Code::kUnavailable, fmt::format("{} is damaged: {}", path.string(), why));
  };
  const auto json = ParseStrictJson(body, kMaxDepth);
  if (!json || !json->is_object()) throw damaged("it is not JSON");
  try {
    if (json->at("format").get_ref<const std::string&>() != kFormat)
      throw Error(Code::kUnavailable, "it is the manifest of something else");
    const std::uint64_t version = Number(*json, "version");
    if (version > kManifestVersion) {
      throw Error(Code::kFailedPrecondition,
                  fmt::format("{} has format {}; this build reads up to {}: use the release that "
                              "wrote it, or a newer one",
                              path.string(), version, kManifestVersion));
    }
    return ReadBody(*json, body);
  } catch (const Json::exception&) {
    throw damaged("something is missing in it");
  } catch (const Error& error) {
    if (error.code() == Code::kFailedPrecondition) throw;
    throw damaged(error.what());
  }
}

}  // namespace orca::io
