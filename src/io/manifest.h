// The manifest of a checkpoint: what its files hold, with checksums.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "orca/io/checkpoint.h"
#include "orca/io/file_system.h"
#include "orca/io/tensor.h"

namespace orca::io {

inline constexpr std::uint64_t kManifestVersion = 1;
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kPartSuffix = ".safetensors";

struct ManifestTensor {
  TensorSpec spec;
  std::uint64_t offset = 0;  ///< In the file.
  std::uint32_t crc = 0;
};

struct ManifestFile {
  std::string part;  ///< The file is <part>.safetensors.
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;         ///< Of the whole file, for other tools.
  std::uint32_t header_crc = 0;  ///< Of what comes before the data; the tensors' cover the rest.
  std::vector<ManifestTensor> tensors;
};

struct Manifest {
  Progress progress;
  std::vector<ManifestFile> files;
  std::string fields;  ///< A JSON object, as the caller wrote it.
};

/// Throws kInvalidArgument unless `part` can name a file: letters, digits, '.', '_' and '-', not
/// more than 100, the first no '.'.
void CheckPartName(const std::string& part);

/// As text: an object of two members, the checksum of the second and the second. Throws
/// kInvalidArgument when the fields are no JSON object.
std::string EncodeManifest(const Manifest& manifest);
/// Throws kUnavailable when the text is damaged, kFailedPrecondition when a newer release wrote it.
/// `path` is for messages.
Manifest DecodeManifest(std::string_view text, const Path& path);

}  // namespace orca::io
