#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>
#include <thread>

#include "comm/store_map.h"
#include "orca/comm/store.h"
#include "orca/core/error.h"
#include "orca/core/unique_fd.h"
#include "orca/net/handshake.h"

namespace orca::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{50};

[[noreturn]] void ThrowFile(const std::string& what, const std::string& path, int error) {
  const std::string text = std::generic_category().message(error);
  if (error == EMFILE || error == ENFILE) {
    throw Error(
        Code::kResourceExhausted,
        fmt::format("cannot {} {}: {}; raise RLIMIT_NOFILE with `ulimit -n`", what, path, text));
  }
  const char* const remedy = error == ENOSPC || error == EDQUOT
                                 ? "make room there"
                                 : "the file store needs a directory that this user may write to";
  throw Error(Code::kUnavailable, fmt::format("cannot {} {}: {}; {}", what, path, text, remedy));
}

// Hashed, since keys may hold any bytes.
std::string FileName(const std::string& key) {
  std::string name;
  for (const std::uint8_t byte : net::HashName(key)) name += fmt::format("{:02x}", byte);
  return name + ".value";
}

// Random, since writers on several hosts may have the same process id.
std::string TemporaryName() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) {
    throw Error(Code::kInternal, "the kernel gives no random bytes");
  }
  return fmt::format("{:016x}.tmp", number);
}

/// A file that is not there yet under its name; removed unless it is renamed.
class TemporaryFile {
 public:
  TemporaryFile(int directory, const std::string& path)
      : directory_(directory), path_(path), name_(TemporaryName()) {
    fd_.Reset(::openat(directory, name_.c_str(),
                       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd_) ThrowFile("write to", path_, errno);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!name_.empty()) ::unlinkat(directory_, name_.c_str(), 0);
  }

  void Write(const std::string& value) {
    // The mode is 0600 whatever the umask.
    if (::fchmod(fd_.get(), 0600) != 0) ThrowFile("write to", path_, errno);
    std::size_t done = 0;
    while (done < value.size()) {
      const ssize_t wrote = ::write(fd_.get(), value.data() + done, value.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) ThrowFile("write to", path_, errno);
      done += static_cast<std::size_t>(wrote);
    }
    // Network file systems report a full disk only here.
    if (::close(fd_.Release()) != 0) ThrowFile("write to", path_, errno);
  }

  void RenameTo(const std::string& name) {
    if (::renameat(directory_, name_.c_str(), directory_, name.c_str()) != 0)
      ThrowFile("write to", path_, errno);
    name_.clear();
  }

 private:
  int directory_;
  std::string path_;
  std::string name_;
  UniqueFd fd_;
};

class FileStore final : public Store {
 public:
  explicit FileStore(const std::string& directory) : path_(directory) {
    if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
      ThrowFile("make", directory, errno);
    directory_.Reset(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory_) ThrowFile("open", directory, errno);
  }

  void Set(const std::string& key, const std::string& value) override {
    CheckStoreKey(key);
    CheckStoreValue(key, value);
    TemporaryFile file(directory_.get(), path_);
    file.Write(value);
    file.RenameTo(FileName(key));
  }

  std::string Get(const std::string& key, milliseconds timeout) override {
    CheckStoreKey(key);
    const Deadline deadline = StoreDeadline(timeout);
    const std::string name = FileName(key);
    milliseconds pause = kFirstPause;
    while (true) {
      if (auto value = Read(name)) return *std::move(value);
      if (deadline.Passed()) ThrowNotSet(fmt::format("the file store {}", path_), key, timeout);
      std::this_thread::sleep_for(std::min(pause, deadline.Left()));
      pause = std::min(2 * pause, kLongestPause);
    }
  }

 private:
  // Empty while there is no such file.
  std::optional<std::string> Read(const std::string& name) const {
    const std::string path = fmt::format("{}/{}", path_, name);
    const UniqueFd fd(
        ::openat(directory_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (!fd) {
      // ESTALE: another host has just replaced it.
      if (errno == ENOENT || errno == ESTALE) return std::nullopt;
      ThrowFile("read", path, errno);
    }
    std::string value(CheckedSize(fd.get(), path), '\0');
    std::size_t done = 0;
    while (done < value.size()) {
      const ssize_t got = ::read(fd.get(), value.data() + done, value.size() - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) ThrowFile("read", path, errno);
      if (got == 0)
        throw Error(Code::kUnavailable, fmt::format("{} shrank while it was read", path));
      done += static_cast<std::size_t>(got);
    }
    return value;
  }

  // The directory may be open to other users, so only files of our own count.
  static std::size_t CheckedSize(int fd, const std::string& path) {
    struct stat status {};
    if (::fstat(fd, &status) != 0) ThrowFile("read", path, errno);
    if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid()) {
      throw Error(
          Code::kUnauthenticated,
          fmt::format(
              "{} belongs to user {}, this process runs as user {}; give the store a directory "
              "that only your processes write to",
              path, status.st_uid, ::geteuid()));
    }
    const auto size = static_cast<std::size_t>(status.st_size);
    if (size > kMaxStoreValue) {
      throw Error(Code::kInvalidArgument, fmt::format("{} has {} bytes; a store takes up to {}",
                                                      path, size, kMaxStoreValue));
    }
    return size;
  }

  std::string path_;
  UniqueFd directory_;
};

}  // namespace

std::shared_ptr<Store> NewFileStore(const std::string& directory) {
  return std::make_shared<FileStore>(directory);
}

}  // namespace orca::comm
