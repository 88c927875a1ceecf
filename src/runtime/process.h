// Starting programs, and how they end.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "orca/core/unique_fd.h"

namespace orca::runtime {

/// A program to start.
struct Program {
  std::vector<std::string> command;
  std::map<std::string, std::string> environment = {};  ///< Added to this process's own.
  std::string directory = {};                           ///< Empty: this process's.
};

/// Starts `program` with `link` as its descriptor 3, in a session of its own: a terminal's signals
/// do not reach it. Safe in a process with threads. Throws kUnavailable when it cannot be started.
pid_t StartDetached(const Program& program, const UniqueFd& link);

/// Starts `program` with `link` as its descriptor 3, and with its outputs where the other two lead.
/// It dies with the calling thread. For a process with one thread.
pid_t StartBound(const Program& program, const UniqueFd& link, const UniqueFd& output,
                 const UniqueFd& errors);

/// "was killed by signal 9 (SIGKILL)", "left with exit code 3".
std::string DescribeExit(int wait_status);
/// As many open files as this process may have; what it starts has the limit from before.
void RaiseDescriptorLimit();

/// Processes that this one has to reap: its children, and orphans of those if it is a subreaper.
std::vector<pid_t> Children();

/// When a process began, in clock ticks since boot: with its number it names a process for good. 0
/// when there is none.
double StartTime(pid_t pid);

/// How many processes the kernel has killed in this process's cgroup for want of memory.
long OomKills();

/// The state of a process in words ("stopped", "running"), as /proc has it.
std::string ProcessState(pid_t pid);

}  // namespace orca::runtime
