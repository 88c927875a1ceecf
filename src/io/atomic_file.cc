#include "orca/io/atomic_file.h"

#include <utility>

#include "io/file_tools.h"

namespace orca::io {
namespace {

// The name of the file is not part of it: with it, a long one would become too long.
Path TemporaryName(FileSystem& files, const Path& path) {
  return FolderOf(path) / (".tmp-" + files.UniqueWord());
}

}  // namespace

AtomicFile::AtomicFile(FileSystem& files, Path path, Access access)
    : files_(files), path_(std::move(path)), file_(files.CreateUnnamed(FolderOf(path_), access)) {
  if (file_) return;
  const Path temporary = TemporaryName(files_, path_);
  file_ = files_.Create(temporary, access);
  temporary_ = temporary;
}

AtomicFile::~AtomicFile() {
  if (temporary_.empty()) return;
  file_.reset();
  try {
    files_.Remove(temporary_);
  } catch (...) {
    // Who abandons a file has an error of his own already.
  }
}

void AtomicFile::Write(std::span<const std::byte> data) {
  WriteAll(*file_, data, path_);
  size_ += data.size();
}

void AtomicFile::Commit() {
  file_->Sync();
  CommitUnsynced();
  files_.SyncFolder(FolderOf(path_));
}

void AtomicFile::CommitUnsynced() {
  if (temporary_.empty()) {
    // A link cannot replace a file, so this name is there for a moment.
    const Path temporary = TemporaryName(files_, path_);
    file_->Name(temporary);
    temporary_ = temporary;
  }
  file_->Close();
  files_.Rename(temporary_, path_);
  temporary_.clear();
}

}  // namespace orca::io
