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
    : files_(files),
      path_(std::move(path)),
      temporary_(TemporaryName(files, path_)),
      file_(files.CreateUnnamed(FolderOf(path_), access)) {
  if (file_) return;
  file_ = files_.Create(temporary_, access);
  has_temporary_ = true;
}

AtomicFile::~AtomicFile() {
  if (!has_temporary_) return;
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
  if (!has_temporary_) {
    // A link cannot replace a file, so this name is there for a moment.
    file_->Name(temporary_);
    has_temporary_ = true;
  }
  file_->Close();
  files_.Rename(temporary_, path_);
  has_temporary_ = false;
}

}  // namespace orca::io
