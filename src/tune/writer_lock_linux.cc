#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

#include "orca/core/error.h"
#include "orca/core/mutant.h"
#include "tune/writer_lock.h"

namespace orca::tune {
namespace {

// A lock of POSIX belongs to the process: children do not inherit it, so it ends with the writer
// whoever was forked meanwhile. A second writer in the same process has to be kept out by a list.
struct Held {
  std::mutex mutex;
  std::set<std::pair<dev_t, ino_t>> files;  // guarded by mutex
};
Held& HeldHere() {
  static Held held;
  return held;
}

[[noreturn]] void Refuse(const std::filesystem::path& file, pid_t holder) {
  throw Error(Code::kFailedPrecondition,
              fmt::format("{} is being written by process {}{}; wait until it has ended, or give "
                          "another file",
                          file.string(), holder, holder == ::getpid() ? " (this one)" : ""));
}

}  // namespace

WriterLock::WriterLock(const std::filesystem::path& file) {
  const std::string name = file.string() + "-lock";
  Held& held = HeldHere();
  const std::lock_guard guard(held.mutex);
  // To close any descriptor of a file is to lose the process's locks on it: look before it is
  // opened.
  struct ::stat found {};
  if (::stat(name.c_str(), &found) == 0 && held.files.contains({found.st_dev, found.st_ino}))
    Refuse(file, ::getpid());
  fd_.Reset(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd_)
    throw Error(Code::kUnavailable,
                fmt::format("{} cannot be written: {}; see that the folder is there and may be "
                            "written",
                            name, std::strerror(errno)));
  struct ::flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  for (int attempt = 0; ::fcntl(fd_.get(), F_SETLK, &lock) != 0 && !IsMutant("store-lock");
       ++attempt) {
    if (errno != EACCES && errno != EAGAIN)
      throw Error(Code::kUnavailable,
                  fmt::format("{} cannot be locked: {}; keep studies on a file system with locks",
                              name, std::strerror(errno)));
    struct ::flock holder = lock;
    const bool is_known = ::fcntl(fd_.get(), F_GETLK, &holder) == 0;
    // It may have ended between the two calls.
    if (is_known && holder.l_type == F_UNLCK && attempt < 100) continue;
    Refuse(file, is_known ? holder.l_pid : -1);
  }
  if (::fstat(fd_.get(), &found) != 0)
    throw Error(Code::kUnavailable, fmt::format("{}: {}", name, std::strerror(errno)));
  identity_ = {found.st_dev, found.st_ino};
  held.files.insert(identity_);
}

WriterLock::~WriterLock() {
  Held& held = HeldHere();
  const std::lock_guard guard(held.mutex);
  held.files.erase(identity_);
  fd_.Reset();
}

}  // namespace orca::tune
