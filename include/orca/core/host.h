// What this machine is and allows: identity, cores, memory, limits.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <thread>

#include "orca/core/export.h"

namespace orca {

inline constexpr std::size_t kMaxCpus = 1024;
using CpuSet = std::bitset<kMaxCpus>;

/// Processes with the same value share memory and abstract sockets: boot, network namespace and
/// user.
ORCA_API std::string HostIdentity();
ORCA_API std::string HostName();

/// The processors that the affinity mask of this process allows.
ORCA_API CpuSet AllowedCpus();
/// How many processors' worth of time the cgroup allows, rounded up; a large number when it sets no
/// limit.
ORCA_API int CgroupCpuLimit();

/// Bytes that can still be taken before the cgroup's memory limit (v1 and v2) or the machine's
/// memory is used up. Going beyond is not an error that a program could catch: the kernel kills it.
struct MemoryLeft {
  std::size_t bytes = 0;
  std::string
      limit;  ///< What limits: "cgroup memory limit 1.0 GiB (/sys/fs/cgroup/…)" or "free memory".
};
ORCA_API MemoryLeft AvailableMemory();
/// Throws kResourceExhausted, naming the limit, unless `bytes` more can be taken. `what` says for
/// what.
ORCA_API void CheckMemoryFor(std::size_t bytes, const std::string& what);

/// The text of `error`, with the name, the value and the remedy of the limit behind it (EMFILE,
/// ENFILE, EAGAIN, ENOMEM).
ORCA_API std::string DescribeLimitError(int error);

/// Starts a thread. Throws kResourceExhausted, naming the limits, when there are too many.
ORCA_API std::jthread StartThread(std::function<void(const std::stop_token&)> body);

/// Rises in a child each time this process is forked, so that an object can tell that it crossed a
/// fork.
ORCA_API std::uint64_t ForkCount();
/// Rises in this process each time it has forked a child: one that may still look at its memory.
ORCA_API std::uint64_t ChildCount();

/// "1.5 GiB".
ORCA_API std::string HumanBytes(std::size_t bytes);

}  // namespace orca
