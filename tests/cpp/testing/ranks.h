// Ranks for tests: threads or processes that form a group.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
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

/// The bytes of one value.
template <typename T>
comm::Bytes BytesOf(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

/// Options with limits that suit tests.
comm::CommOptions TestOptions(const Layout& layout, int rank);

/// One rank's place in a group.
struct Seat {
  int rank = 0;
  int world = 1;
  Layout layout;
  std::shared_ptr<comm::Store> store;
  std::string group = "test";
  std::uint64_t generation = 0;
  std::function<void(comm::CommOptions&)> adjust = nullptr;
};
std::unique_ptr<comm::Communicator> Join(const Seat& seat);

/// Runs body(rank) on `count` threads; returns the error that each ended with, empty for none.
std::vector<std::string> RunThreads(int count, const std::function<void(int rank)>& body);
/// "peer lost: rank 1 ...", or nothing when there is no error.
std::string DescribeError(const std::exception_ptr& error);

/// Runs `body` on `world` ranks, each a thread with its own Communicator; rethrows the first
/// exception of any of them.
void RunRanks(int world, const Layout& layout,
              const std::function<void(comm::Communicator&)>& body);
/// As above, with the options changed by `adjust`.
void RunRanks(int world, const Layout& layout,
              const std::function<void(comm::CommOptions&)>& adjust,
              const std::function<void(comm::Communicator&)>& body);

/// Runs `body` on `world` ranks, each a forked process; returns what each printed as its error,
/// empty for none. A rank that is killed reports "signal N". Descriptor and process counts of this
/// process are checked to be as before.
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
