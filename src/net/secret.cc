#include "orca/net/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "net/crypto.h"
#include "net/os_error.h"
#include "orca/core/error.h"
#include "orca/core/unique_fd.h"

namespace orca::net {
namespace {

constexpr std::size_t kHexDigits = 2 * Secret::kBytes;

int HexValue(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

// The messages never show the text: it may be most of a secret.
std::array<std::uint8_t, Secret::kBytes> ParseHex(std::string_view hex, const std::string& source) {
  if (hex.size() != kHexDigits) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{} holds {} characters; a secret is {} hex digits", source, hex.size(),
                            kHexDigits));
  }
  std::array<std::uint8_t, Secret::kBytes> bytes{};
  for (std::size_t i = 0; i < kHexDigits; ++i) {
    const int value = HexValue(hex[i]);
    if (value < 0) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("character {} of {} is not a hex digit; a secret is {} of them",
                              i + 1, source, kHexDigits));
    }
    bytes[i / 2] = static_cast<std::uint8_t>(bytes[i / 2] << 4 | value);
  }
  return bytes;
}

UniqueFd OpenSecretFile(const std::string& path) {
  // Non-blocking, so that a pipe in the file's place cannot hold us; it does not matter to a file.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (fd) return fd;
  if (errno == ELOOP) {
    throw Error(
        Code::kFailedPrecondition,
        fmt::format("secret file {} is a symbolic link; give the path of the file itself", path));
  }
  ThrowErrno(Code::kInvalidArgument, fmt::format("cannot open secret file {}", path), errno);
}

void CheckSecretFile(int fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    ThrowErrno(Code::kInvalidArgument, fmt::format("cannot inspect secret file {}", path), errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(Code::kFailedPrecondition,
                fmt::format("secret file {} is not a regular file; give a file with {} hex digits",
                            path, kHexDigits));
  }
  if (status.st_uid != ::geteuid()) {
    throw Error(Code::kFailedPrecondition,
                fmt::format("secret file {} belongs to user {}, this process runs as user {}; "
                            "use a file of your own",
                            path, status.st_uid, ::geteuid()));
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw Error(
        Code::kFailedPrecondition,
        fmt::format("secret file {} has mode {:04o}, so others can get at it; run `chmod 600 {}`",
                    path, status.st_mode & 07777, path));
  }
}

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

}  // namespace

Secret Secret::Random() {
  Secret secret;
  FillRandom(secret.bytes_);
  return secret;
}

Secret Secret::FromFile(const std::string& path) {
  const UniqueFd fd = OpenSecretFile(path);
  CheckSecretFile(fd.get(), path);
  // Wiped on every way out.
  struct Buffer {
    std::array<char, kHexDigits + 16> text{};
    ~Buffer() { OPENSSL_cleanse(text.data(), text.size()); }
  } buffer;
  std::size_t size = 0;
  while (size < buffer.text.size()) {
    const ssize_t got = ::read(fd.get(), buffer.text.data() + size, buffer.text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      ThrowErrno(Code::kInvalidArgument, fmt::format("cannot read secret file {}", path), errno);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  while (size > 0 && IsSpace(buffer.text[size - 1])) --size;
  Secret secret;
  secret.bytes_ = ParseHex({buffer.text.data(), size}, fmt::format("secret file {}", path));
  return secret;
}

Secret Secret::FromHex(const std::string& hex) {
  Secret secret;
  secret.bytes_ = ParseHex(hex, "the text");
  return secret;
}

Secret::~Secret() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

std::string Secret::ToHex() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  hex.reserve(kHexDigits);
  for (const std::uint8_t byte : bytes_) {
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  return hex;
}

}  // namespace orca::net
