// Array files as bytes; `path` is for messages.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "io/tensor_types.h"
#include "orca/io/file_system.h"
#include "orca/io/tensor.h"

namespace orca::io {

/// Throws as ReadIdx and ReadNpy do.
FileTensor ParseIdx(const Path& path, FileView view);
FileTensor ParseNpy(const Path& path, FileView view);

/// Whether bytes begin as gzip's do.
bool IsGzip(std::span<const std::byte> bytes);
/// Unpacks gzip's bytes. Throws kUnavailable when they are damaged, kResourceExhausted when memory
/// has no room for them.
FileView Unzip(const Path& path, std::span<const std::byte> bytes);

/// `data` with the bytes of each element turned around.
std::vector<std::byte> SwapElements(std::span<const std::byte> data, std::size_t element);

/// A view of bytes that it owns.
FileView ViewOf(std::vector<std::byte> bytes);

[[noreturn]] void ThrowDamagedArray(const Path& path, const std::string& why);

}  // namespace orca::io
