// Waiting for a socket.
#pragma once

#include "orca/core/deadline.h"

namespace orca::net {

/// Waits until one of the poll(2) `events` or an error happens on `fd`; false when the deadline
/// passes first.
bool WaitFor(int fd, short events, const Deadline& deadline);

}  // namespace orca::net
