// What all writers of files need.
#pragma once

#include <cstddef>
#include <span>

#include "orca/io/file_system.h"

namespace orca::io {

/// Writes all of `data`, however many calls it takes. Throws the error of ThrowFileError.
void WriteAll(WritableFile& file, std::span<const std::byte> data, const Path& path);

/// The folder that holds `path`.
Path FolderOf(const Path& path);

/// Makes `folder` and those above it; durable when it returns.
void MakeFolders(FileSystem& files, const Path& folder);

/// Removes a folder and the files in it. Folders in it are not followed: then it throws.
void RemoveFlatFolder(FileSystem& files, const Path& folder);

}  // namespace orca::io
