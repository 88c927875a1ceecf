// The process that workers are forked from.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "orca/core/export.h"
#include "orca/core/unique_fd.h"

namespace orca::runtime {

/// What a new worker begins with.
struct ORCA_API Birth {
  std::uint64_t worker = 0;  ///< 0: no worker but a spare; see Nursery::BecomeSpare.
  UniqueFd link;             ///< To the agent; see Worker.
  UniqueFd output;           ///< What it writes to standard output ...
  UniqueFd errors;           ///< ... and to standard error goes here.
  UniqueFd stacks;           ///< Stacks that are asked for go here; see StackOutput.

  /// In the forked child: makes it the leader of a group of its own, so that its children can be
  /// ended with it, and puts `output`, `errors` and `stacks` in their places.
  void Settle();
};

/// Serves an agent: tells when to fork, reports who was born and who has died. It has imported what
/// all workers need, runs nothing, and must have one thread when it forks.
class ORCA_API Nursery {
 public:
  /// The descriptor that an agent gives to a nursery, by its number in ORCA_NURSERY.
  static std::optional<int> InheritedFd();

  explicit Nursery(UniqueFd agent);
  ~Nursery();

  /// Says that workers can be forked; `threads` is how many this process has, `versions` what it
  /// has imported, by name.
  void Ready(int threads, const std::map<std::string, std::string>& versions = {});
  /// Waits for the next worker to fork; nothing when the agent has gone: leave.
  std::optional<Birth> Next();
  /// In the forked child, if `birth.worker` is 0: makes this process a spare, which takes the place
  /// of its parent when that dies. Call Ready next, as the parent did, and then Next.
  void BecomeSpare(Birth birth);
  /// In the parent, after the fork.
  void Forked(std::uint64_t worker, pid_t pid);
  /// In the parent, when fork failed with `error`.
  void CannotFork(std::uint64_t worker, int error);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace orca::runtime
