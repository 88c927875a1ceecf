#include "io/file_tools.h"

#include <cerrno>

#include "orca/core/mutant.h"

namespace orca::io {

void WriteAll(WritableFile& file, std::span<const std::byte> data, const Path& path) {
  while (!data.empty()) {
    const Written written = file.Write(data);
    if (written.error == EINTR && !IsMutant("write-again")) continue;
    if (written.error != 0) ThrowFileError("write", path, written.error);
    // A write that takes nothing and says nothing would be tried for ever.
    if (written.bytes == 0) ThrowFileError("write", path, ENOSPC);
    data = data.subspan(written.bytes);
  }
}

Path FolderOf(const Path& path) {
  const Path folder = path.parent_path();
  return folder.empty() ? Path(".") : folder;
}

void MakeFolders(FileSystem& files, const Path& folder) {
  const Path clean = folder.has_filename() ? folder : folder.parent_path();
  if (clean.empty() || clean == clean.root_path() || clean == ".") return;
  MakeFolders(files, FolderOf(clean));
  if (files.MakeFolder(clean)) files.SyncFolder(FolderOf(clean));
}

void RemoveFlatFolder(FileSystem& files, const Path& folder) {
  for (const std::string& name : files.List(folder)) files.Remove(folder / name);
  files.Remove(folder);
}

}  // namespace orca::io
