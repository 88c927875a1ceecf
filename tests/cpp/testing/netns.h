// "Hosts" that are network namespaces of this machine, joined by a bridge.
#pragma once

#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

namespace orca::testing {

/// Namespaces orca-PID-0, orca-PID-1, ... with an interface eth0 each (10.77.0.1, 10.77.0.2, ...).
/// They go with the object; those of a test that crashed are removed when the next network is made.
class Network {
 public:
  /// Nothing, with `reason` set, where namespaces are not permitted or iproute2 is missing.
  static std::unique_ptr<Network> Create(int hosts, std::string* reason);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  std::string address(int host) const;
  /// Moves the calling thread, and those that it starts, to a host.
  void Enter(int host) const;
  /// Runs a command on a host; fails the test when it fails.
  void Run(int host, const std::string& command) const;
  /// Whether the command succeeds there.
  bool Try(int host, const std::string& command) const;

  /// Drops what arrives at a host, and what leaves it.
  void CutIncoming(int host) const;
  void CutOutgoing(int host) const;

 private:
  Network() = default;
  std::string Name(int host) const;

  pid_t owner_ = ::getpid();  // children enter their parent's network
  int hosts_ = 0;
};

}  // namespace orca::testing
