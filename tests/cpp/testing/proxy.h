// A network in between that damages or cuts what passes.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <string>
#include <thread>

#include "orca/core/unique_fd.h"

namespace orca::testing {

/// Listens, connects every client on to `target`, and passes bytes both ways until the one at `at`
/// of those that clients sent (counted over all connections): that one it damages, or there it
/// closes everything.
class ChaosProxy {
 public:
  enum class Chaos { kNone, kFlipBit, kClose };
  ChaosProxy(std::string target, Chaos chaos, std::size_t at);
  ~ChaosProxy();

  const std::string& address() const { return address_; }
  std::size_t passed() const { return passed_; }

 private:
  struct Tunnel {
    UniqueFd client;
    UniqueFd server;
  };
  void Loop(const std::stop_token& stop);
  /// Moves what there is; returns whether the tunnel goes on.
  bool Pass(int from, int to, bool from_client);

  std::string target_;
  Chaos chaos_;
  std::size_t at_;
  std::string address_;
  UniqueFd listener_;
  UniqueFd wake_;
  std::list<Tunnel> tunnels_;
  std::atomic<std::size_t> passed_{0};
  std::jthread thread_;
};

}  // namespace orca::testing
