#include <poll.h>

#include <chrono>
#include <set>
#include <string>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/log.h"
#include "orca/net/socket.h"
#include "runtime/guests.h"

namespace orca::runtime {
namespace {

// The rest of what NodeShards does is for agents and drivers.
const std::set<std::string> kAllowed = {"new", "open", "hold", "drop", "deposit"};

}  // namespace

const std::string& Guests::Open(const net::Secret& secret) {
  if (acceptor_) return name_;
  acceptor_.emplace(
      secret,
      [](const net::Hello& hello) {
        if (hello.role != kGuestRole)
          throw Error(Code::kUnauthenticated, "it is no guest of this release");
      },
      [this](const net::Acceptor::Connection& connection) { Admit(connection); });
  acceptor_->Listen(net::ListenUnix(&name_), true);
  loop_.Include([this](std::vector<pollfd>& fds) { acceptor_->AppendPollFds(fds); },
                [this] { acceptor_->Handle(); });
  return name_;
}

// What proved itself over a stream goes on over a link, which carries descriptors.
void Guests::Admit(const net::Acceptor::Connection& connection) {
  auto [mine, theirs] = UnixLink::Pair();
  try {
    net::SendFd(connection.socket.get(), theirs.get(), Deadline::After(std::chrono::seconds(1)));
  } catch (const Error& error) {
    Log(LogLevel::kDebug, std::string("a guest went before it was let in: ") + error.what());
    return;
  }
  const NodeShards::Holder guest = ++last_;
  auto& link = links_[guest] = std::make_unique<UnixLink>(std::move(mine));
  loop_.Watch(
      link->fd(),
      [link = link.get()] {
        return static_cast<short>(link->wants_write() ? POLLIN | POLLOUT : POLLIN);
      },
      [this, guest](short) { Handle(guest); });
}

void Guests::Handle(NodeShards::Holder guest) {
  UnixLink& link = *links_.at(guest);
  try {
    link.Flush();
    while (auto message = link.Receive()) {
      const std::string op = message->head.value("op", "");
      if (op == "question") {
        message->head["guest"] = guest;
        ask_(std::move(*message));
      } else if (kAllowed.contains(op)) {
        shards_.Handle(guest, *message);
      } else {
        throw Error(Code::kInvalidArgument, "it wants \"" + op + "\", which is not for guests");
      }
    }
    return;
  } catch (const Error& error) {
    if (error.code() != Code::kPeerLost)
      Log(LogLevel::kWarning, std::string("a guest is sent away: ") + error.what());
  } catch (const Json::exception& error) {
    Log(LogLevel::kWarning, std::string("a guest is sent away: ") + error.what());
  }
  loop_.Forget(link.fd());
  links_.erase(guest);
  shards_.HolderGone(guest);
}

void Guests::Answer(Message message) {
  const auto guest = message.head.at("guest").get<NodeShards::Holder>();
  if (!links_.contains(guest)) return;
  shards_.HoldFor(guest, message.head.at("shards").get<std::vector<std::uint64_t>>());
  message.head["op"] = "granted";
  Send(guest, std::move(message));
}

void Guests::Send(NodeShards::Holder guest, Message message) {
  if (const auto found = links_.find(guest); found != links_.end())
    found->second->Send(std::move(message));
}

}  // namespace orca::runtime
