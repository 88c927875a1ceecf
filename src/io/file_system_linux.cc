#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <system_error>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/memory_file.h"
#include "orca/core/unique_fd.h"
#include "orca/io/file_system.h"

namespace orca::io {
namespace {

const char* RemedyFor(int error) {
  switch (error) {
    case ENOSPC:
      return "make room there or choose another disk";
    case EDQUOT:
      return "the user's quota is used up; make room or have it raised";
    case EFBIG:
      return "the file system takes no file of this size; choose another disk";
    case EROFS:
    case EACCES:
    case EPERM:
      return "choose a place that this user may use";
    case EIO:
      return "the disk or its server fails; the kernel's log (dmesg) says more";
    case ENOENT:
    case ENOTDIR:
      return "check the path";
    case EEXIST:
    case ENOTEMPTY:
      return "remove what is there or choose another name";
    case EISDIR:
      return "a file was expected, and this is a folder";
    default:
      return "";
  }
}

std::string OwnName(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

// The umask takes its share of 0666; 0600 is meant whatever it is.
UniqueFd OpenNew(const Path& path, int how, Access access) {
  const bool is_private = access == Access::kUser;
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | how, is_private ? 0600 : 0666));
  if (fd && is_private && ::fchmod(fd.get(), 0600) != 0) fd.Reset();
  return fd;
}

class LinuxFile final : public WritableFile {
 public:
  LinuxFile(UniqueFd fd, Path path) : fd_(std::move(fd)), path_(std::move(path)) {}
  void Take(UniqueFd fd) { fd_ = std::move(fd); }

  Written Write(std::span<const std::byte> data) override {
    const ssize_t done = ::write(fd_.get(), data.data(), data.size());
    return done < 0 ? Written{0, errno} : Written{static_cast<std::size_t>(done), 0};
  }

  // Not tried again: after a failure the kernel may have dropped the pages and call them clean.
  void Sync() override {
    int done = 0;
    do {
      done = ::fsync(fd_.get());
    } while (done != 0 && errno == EINTR);
    if (done != 0) ThrowFileError("write", path_, errno);
  }

  void Close() override {
    if (::close(fd_.Release()) != 0 && errno != EINTR) ThrowFileError("write", path_, errno);
  }

  void Name(const Path& path) override {
    const std::string own = OwnName(fd_.get());
    if (::linkat(AT_FDCWD, own.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) != 0)
      ThrowFileError("create", path, errno);
  }

  int fd() const override { return fd_.get(); }

 private:
  UniqueFd fd_;
  Path path_;
};

class LinuxFolderLock final : public FolderLock {
 public:
  explicit LinuxFolderLock(UniqueFd fd) : fd_(std::move(fd)) {}

 private:
  UniqueFd fd_;
};

UniqueFd OpenFolder(const Path& folder) {
  return UniqueFd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

class LinuxFiles final : public FileSystem {
 public:
  std::unique_ptr<WritableFile> Create(const Path& path, Access access) override {
    auto file = std::make_unique<LinuxFile>(UniqueFd(), path);  // What can fail comes first.
    file->Take(OpenNew(path, O_CREAT | O_EXCL | O_NOFOLLOW, access));
    if (file->fd() < 0) ThrowFileError("create", path, errno);
    return file;
  }

  std::unique_ptr<WritableFile> CreateUnnamed(const Path& folder, Access access) override {
    UniqueFd fd = OpenNew(folder, O_TMPFILE, access);
    // Its name will be given through /proc, which a container may lack.
    if (!fd || ::access(OwnName(fd.get()).c_str(), F_OK) != 0) return nullptr;
    return std::make_unique<LinuxFile>(std::move(fd), folder);
  }

  FileView Map(const Path& path) override {
    // Without O_NONBLOCK a pipe of that name would stop us for ever.
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat info {};
    if (!fd || ::fstat(fd.get(), &info) != 0) ThrowFileError("read", path, errno);
    if (S_ISDIR(info.st_mode)) ThrowFileError("read", path, EISDIR);
    if (!S_ISREG(info.st_mode))
      throw Error(Code::kUnavailable,
                  fmt::format("cannot read {}: it is not a regular file", path.string()));
    if (info.st_size == 0) return {};
    auto mapping =
        std::make_shared<PrivateMapping>(fd.get(), static_cast<std::size_t>(info.st_size));
    const std::span<const std::byte> bytes(mapping->data(), mapping->size());
    return {bytes, std::move(mapping)};
  }

  void Rename(const Path& from, const Path& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0) ThrowFileError("rename to", to, errno);
  }

  bool Remove(const Path& path) override {
    if (std::remove(path.c_str()) == 0) return true;
    if (errno != ENOENT) ThrowFileError("remove", path, errno);
    return false;
  }

  bool MakeFolder(const Path& path) override {
    if (::mkdir(path.c_str(), 0700) == 0) return true;
    const int error = errno;
    // Not only EEXIST: a folder above may be there and closed to this user.
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return false;
    ThrowFileError("make", path, error);
  }

  std::vector<std::string> List(const Path& folder) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> opened(::opendir(folder.c_str()), &::closedir);
    if (!opened) {
      if (errno == ENOENT) return {};
      ThrowFileError("read", folder, errno);
    }
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(opened.get())) {
      const std::string name = static_cast<const char*>(entry->d_name);
      if (name != "." && name != "..") names.push_back(name);
      errno = 0;
    }
    if (errno != 0) ThrowFileError("read", folder, errno);
    std::ranges::sort(names);
    return names;
  }

  void SyncFolder(const Path& folder) override {
    const UniqueFd fd = OpenFolder(folder);
    // EINVAL: some network file systems have nothing to do here.
    if (!fd || (::fsync(fd.get()) != 0 && errno != EINVAL)) ThrowFileError("write", folder, errno);
  }

  std::unique_ptr<FolderLock> TryLock(const Path& folder) override {
    UniqueFd fd = OpenFolder(folder);
    if (!fd && errno == ENOENT) return nullptr;
    if (!fd) ThrowFileError("lock", folder, errno);
    // Where locks are not to be had, a folder counts as held: better a leftover than a loss.
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return nullptr;
    return std::make_unique<LinuxFolderLock>(std::move(fd));
  }

  std::string UniqueWord() override {
    std::uint64_t number = 0;
    if (::getrandom(&number, sizeof number, 0) != sizeof number)
      throw Error(Code::kInternal, "the kernel gives no random bytes");
    return fmt::format("{:016x}", number);
  }
};

}  // namespace

FileSystem& RealFiles() {
  static LinuxFiles* const files = std::make_unique<LinuxFiles>().release();
  return *files;
}

void ThrowFileError(const std::string& doing, const Path& path, int error) {
  const std::string what = fmt::format("cannot {} {}", doing, path.string());
  if (error == EMFILE || error == ENFILE || error == ENOMEM)
    throw Error(Code::kResourceExhausted, fmt::format("{}: {}", what, DescribeLimitError(error)));
  const std::string remedy = RemedyFor(error);
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throw Error(is_full ? Code::kResourceExhausted : Code::kUnavailable,
              fmt::format("{}: {}{}{}", what, std::generic_category().message(error),
                          remedy.empty() ? "" : "; ", remedy));
}

}  // namespace orca::io
