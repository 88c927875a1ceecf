// Ranks as processes that a test can talk to, stop and kill.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "orca/comm/communicator.h"
#include "orca/core/unique_fd.h"
#include "testing/ranks.h"

namespace orca::testing {

using Clock = std::chrono::steady_clock;

/// How a child reports to its parent, line by line.
class Voice {
 public:
  explicit Voice(int fd) : fd_(fd) {}
  void Tell(std::string line) const;

 private:
  int fd_;
};

/// A forked process; killed and reaped when the object goes.
class Child {
 public:
  explicit Child(const std::function<void(const Voice&)>& body);
  Child(Child&&) = default;
  ~Child();

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  /// The next line it tells; nothing when it has ended, or (a failure) when `limit` passes first.
  std::optional<std::string> Listen(std::chrono::milliseconds limit = std::chrono::seconds(60));
  /// Reaps it; returns its wait status. Fails the test when it does not end within `limit`.
  int Wait(std::chrono::milliseconds limit = std::chrono::seconds(60));

 private:
  struct Pid {
    explicit Pid(pid_t pid) : value(pid) {}
    Pid(Pid&& other) noexcept : value(std::exchange(other.value, -1)) {}
    pid_t value;
  };
  Pid owned_{-1};  // -1 when reaped or moved away
  pid_t pid_ = -1;
  UniqueFd pipe_;
  std::string unread_;
};

/// How a rank's program ended.
struct Outcome {
  std::optional<Code> code;  ///< Nothing when it did not throw.
  std::string text;
  Clock::time_point at;  ///< By the rank's own look at the clock, which all processes share.
};

/// A group of processes that meet in a directory of their own.
class RankProcesses {
 public:
  using Body = std::function<void(comm::Communicator&, const Voice&)>;
  RankProcesses(int world, Layout layout, std::function<void(comm::CommOptions&)> adjust,
                const Body& body);
  /// As above, with the program also joining the group itself: body(store, rank, voice).
  using FreeBody = std::function<void(std::shared_ptr<comm::Store> store, int rank, const Voice&)>;
  RankProcesses(int world, const FreeBody& body);
  ~RankProcesses();

  Child& child(int rank) { return children_[static_cast<std::size_t>(rank)]; }
  const std::string& directory() const { return directory_; }
  /// Reads lines of `rank` until `line` comes; fails the test when it does not.
  void AwaitLine(int rank, const std::string& line);
  /// Reads lines of `rank` until it says how it ended.
  Outcome End(int rank);

 private:
  void Start(int world, const FreeBody& body);

  std::string directory_;
  std::vector<Child> children_;
};

/// "1.25 s", for reports of how long something took.
std::string Elapsed(Clock::time_point from, Clock::time_point to);

}  // namespace orca::testing
