#include "orca/io/atomic_file.h"

#include <utility>

#include "io/file_tools.h"

namespace orca::io {

AtomicFile::AtomicFile(FileSystem& files, Path path)
    : files_(files),
      path_(std::move(path)),
      // The name is not part of it: with it, a long one would become too long.
      temporary_(FolderOf(path_) / (".tmp-" + files.UniqueWord())),
      file_(files.Create(temporary_)) {}

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
  file_->Close();
  files_.Rename(temporary_, path_);
  temporary_.clear();
  files_.SyncFolder(FolderOf(path_));
}

}  // namespace orca::io
