#include <unistd.h>

#include "orca/core/unique_fd.h"

namespace orca {

void UniqueFd::Reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

}  // namespace orca
