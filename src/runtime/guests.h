// The guests of an agent: see include/orca/runtime/guest.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "orca/net/acceptor.h"
#include "orca/net/secret.h"
#include "runtime/link.h"
#include "runtime/loop.h"
#include "runtime/node_shards.h"

namespace orca::runtime {

inline constexpr std::uint32_t kGuestRole = 0x6775;

/// Lets guests in and serves them, in the agent's loop.
class Guests {
 public:
  /// `ask` takes a guest's question to the driver.
  Guests(Loop& loop, NodeShards& shards, std::function<void(Message)> ask)
      : loop_(loop), shards_(shards), ask_(std::move(ask)) {}
  /// Opens the door, unless it is open; returns its name.
  const std::string& Open(const net::Secret& secret);
  /// Hands the driver's answer to the guest who asked, unless it is gone.
  void Answer(Message message);
  /// To a guest, unless it is gone.
  void Send(NodeShards::Holder guest, Message message);

 private:
  void Admit(const net::Acceptor::Connection& connection);
  void Handle(NodeShards::Holder guest);

  Loop& loop_;
  NodeShards& shards_;
  const std::function<void(Message)> ask_;
  std::string name_;
  std::optional<net::Acceptor> acceptor_;
  NodeShards::Holder last_ = NodeShards::kFirstGuest;
  std::map<NodeShards::Holder, std::unique_ptr<UnixLink>> links_;
};

}  // namespace orca::runtime
