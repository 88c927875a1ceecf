#include <fmt/format.h>
#include <sys/resource.h>

#include <cerrno>
#include <system_error>

#include "net/os_error.h"

namespace orca::net {

std::string ErrnoText(int error) { return std::generic_category().message(error); }

void ThrowErrno(Code code, const std::string& what, int error) {
  switch (error) {
    case EMFILE: {
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      throw Error(
          Code::kResourceExhausted,
          fmt::format("{}: this process has all {} descriptors open that RLIMIT_NOFILE allows "
                      "(hard limit {}); raise it, e.g. with `ulimit -n {}`",
                      what, limit.rlim_cur, limit.rlim_max, limit.rlim_cur * 4));
    }
    case ENFILE:
      throw Error(Code::kResourceExhausted,
                  fmt::format("{}: the system has no descriptors left; raise fs.file-max "
                              "(RLIMIT_NOFILE of this process is not the cause)",
                              what));
    case ENOMEM:
    case ENOBUFS:
      throw Error(Code::kResourceExhausted,
                  fmt::format("{}: {}; free memory or raise the limit of the control group", what,
                              ErrnoText(error)));
    default:
      throw Error(code, fmt::format("{}: {}", what, ErrnoText(error)));
  }
}

}  // namespace orca::net
