// Files of one array: IDX, as MNIST comes in, and numpy's NPY.
#pragma once

#include "orca/core/export.h"
#include "orca/io/file_system.h"
#include "orca/io/tensor.h"

namespace orca::io {

/// Reads an IDX file; one that is compressed with gzip, too. Plain bytes are a view of the file,
/// wider elements are copied, since IDX is big-endian. Throws kUnavailable for a damaged file.
ORCA_API FileTensor ReadIdx(const Path& path, FileSystem& files = RealFiles());
/// Throws kInvalidArgument for a type that IDX does not have, or more than 255 dimensions.
ORCA_API void WriteIdx(const Path& path, const Tensor& tensor, FileSystem& files = RealFiles());

/// Reads an NPY file as a view; big-endian elements are copied. Throws kUnavailable for a damaged
/// file, kInvalidArgument for what no tensor can hold: objects, records, columns first.
ORCA_API FileTensor ReadNpy(const Path& path, FileSystem& files = RealFiles());
/// Throws kInvalidArgument for a type that numpy does not have.
ORCA_API void WriteNpy(const Path& path, const Tensor& tensor, FileSystem& files = RealFiles());

}  // namespace orca::io
