// Files of torch.save as bytes, and the numbers that reader and writer share.
#pragma once

#include "io/zip_file.h"
#include "orca/io/file_system.h"
#include "orca/io/torch_file.h"

namespace orca::io {

/// Lists, tuples and dicts nest no deeper.
inline constexpr int kMaxTorchDepth = 100;

/// Throws as ReadTorchFile does; `path` is for messages.
TorchFile ParseTorchFile(const Path& path, FileView view);

/// Throws as WriteTorchFile does, before the sink gets anything.
void EncodeTorchFile(const TorchValue& value, const ByteSink& sink);

/// Whether it can be a key of a dict in Python: tensors, lists and dicts cannot, nor tuples of
/// them.
bool IsTorchKey(const TorchValue& value);

}  // namespace orca::io
