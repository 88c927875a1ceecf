// Writing the files of a checkpoint.
#pragma once

#include "orca/io/checkpoint.h"
#include "orca/io/file_system.h"

namespace orca::io {

/// Writes all files of `content` into an empty folder; they are on the disk when it returns. The
/// manifest comes last: without it there is no checkpoint.
void WriteCheckpoint(const CheckpointContent& content, const Path& folder, FileSystem& files);

}  // namespace orca::io
