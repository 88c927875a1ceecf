// Ranks for tests: threads or processes that form a group.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "orca/comm/communicator.h"

namespace orca::testing {

/// How the ranks of a test group are laid out.
struct Layout {
  std::string name;
  /// The host that a rank pretends to be on; ranks of one host share memory, hosts talk over TCP.
  std::function<std::string(int rank)> host;
};

Layout SharedMemoryLayout();
Layout TcpLayout();
/// Hosts with `per_host` ranks each; the last one may hold fewer.
Layout HostsLayout(int per_host);

/// Options with limits that suit tests.
comm::CommOptions TestOptions(const Layout& layout, int rank);

/// Runs `body` on `world` ranks, each a thread with its own Communicator; rethrows the first exception of any of them.
void RunRanks(int world, const Layout& layout, const std::function<void(comm::Communicator&)>& body);
/// As above, with the options changed by `adjust`.
void RunRanks(int world, const Layout& layout, const std::function<void(comm::CommOptions&)>& adjust,
              const std::function<void(comm::Communicator&)>& body);

/// Runs `body` on `world` ranks, each a forked process; returns what each printed as its error, empty for none. A rank
/// that is killed reports "signal N". Descriptor and process counts of this process are checked to be as before.
std::vector<std::string> RunProcesses(int world, const Layout& layout,
                                      const std::function<void(comm::Communicator&)>& body);
std::vector<std::string> RunProcesses(int world, const Layout& layout,
                                      const std::function<void(comm::CommOptions&)>& adjust,
                                      const std::function<void(comm::Communicator&)>& body);

/// Runs `body` on threads and returns the error that each rank ended with, empty for none.
std::vector<std::string> RunRanksAndCatch(int world, const Layout& layout,
                                          const std::function<void(comm::CommOptions&)>& adjust,
                                          const std::function<void(comm::Communicator&)>& body);

}  // namespace orca::testing
