// The state of a training run at one iteration.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "orca/core/export.h"
#include "orca/io/file_system.h"
#include "orca/io/safetensors.h"
#include "orca/io/tensor.h"

namespace orca::io {

/// Where training stood.
struct Progress {
  std::uint64_t iteration = 0;
  std::uint64_t epoch = 0;
  std::uint64_t cursor = 0;  ///< Rows of the epoch that are used up.

  bool operator==(const Progress&) const = default;
};

/// What a checkpoint is made of.
struct CheckpointContent {
  Progress progress;
  /// Tensors by part, e.g. "model" and "optimizer": each becomes one file, <part>.safetensors.
  std::map<std::string, std::vector<Tensor>> parts;
  /// A JSON object with whatever else the caller wants to find again; kept letter by letter.
  std::string fields = "{}";
  /// Keeps the tensors' memory, where they must live longer than the call.
  std::shared_ptr<const void> owner = {};
};

/// A checkpoint on disk whose every byte was compared with its checksums.
///
/// Tensors are views of mapped files and live as long as a copy of the object. Any thread may read.
class ORCA_API Checkpoint {
 public:
  /// Throws kUnavailable, naming file, tensor and offset, when anything is missing or damaged, and
  /// kFailedPrecondition when a newer release wrote it.
  static Checkpoint Open(const Path& folder, FileSystem& files = RealFiles());

  const Path& folder() const { return folder_; }
  const Progress& progress() const { return progress_; }
  const std::string& fields() const { return fields_; }
  /// The names of the parts.
  std::vector<std::string> parts() const;
  /// The tensors of a part; throws kInvalidArgument with the known ones when there is none.
  const SafetensorsFile& part(const std::string& name) const;
  /// Throws kInvalidArgument at the first difference: the checkpoint is of another model.
  void CheckMatches(const std::string& part, std::span<const TensorSpec> expected) const;

 private:
  Checkpoint() = default;

  Path folder_;
  Progress progress_;
  std::string fields_;
  std::map<std::string, SafetensorsFile> parts_;
};

}  // namespace orca::io
