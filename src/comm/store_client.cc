#include <fmt/format.h>

#include <array>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/store_protocol.h"
#include "orca/comm/store.h"
#include "orca/core/error.h"
#include "orca/core/unique_fd.h"
#include "orca/net/channel.h"
#include "orca/net/socket.h"

namespace orca::comm {
namespace {

using std::chrono::milliseconds;

// What an answer may take beyond the time that the call itself allows.
constexpr milliseconds kAnswerLimit{10'000};
constexpr milliseconds kFirstPause{10};  // Between two tries to connect; doubled every time.

/// An authenticated connection; one call at a time.
class Link {
 public:
  Link(UniqueFd fd, const net::SessionKeys& keys)
      : fd_(std::move(fd)), channel_(keys, net::SealedChannel::Side::kClient, kMaxStoreMessage) {}

  StoreReply Call(const StoreRequest& request, const Deadline& deadline) {
    net::SendAll(fd_.get(), channel_.Seal(Encode(request)), deadline);
    std::array<std::byte, 16 * 1024> buffer;
    while (true) {
      if (const auto message = channel_.Next()) return DecodeStoreReply(*message);
      const std::size_t got = net::RecvSome(fd_.get(), buffer, deadline);
      channel_.Feed(std::span(buffer).first(got));
    }
  }

 private:
  UniqueFd fd_;
  net::SealedChannel channel_;
};

std::unique_ptr<Link> Connect(const std::string& address, const net::Secret& secret,
                              const Deadline& deadline) {
  const std::array addresses = {address};
  for (milliseconds pause = kFirstPause;; pause *= 2) {
    UniqueFd fd = net::ConnectTcp(addresses, deadline);
    try {
      const net::SessionKeys keys = net::ConnectHandshake(fd.get(), secret, StoreHello(), deadline);
      return std::make_unique<Link>(std::move(fd), keys);
    } catch (const Error& error) {
      // A busy server drops connections that have not proved themselves; another try may be
      // luckier.
      if (error.code() != Code::kPeerLost || deadline.Left() <= pause) throw;
    }
    std::this_thread::sleep_for(pause);
  }
}

/// Calls of several threads use a connection each, so a get that waits does not hold up the set
/// that it waits for.
class StoreClient final : public Store {
 public:
  StoreClient(const std::string& address, const net::Secret& secret, const Deadline& deadline)
      : address_(address), secret_(secret) {
    idle_.push_back(Connect(address, secret, deadline));
  }

  void Set(const std::string& key, const std::string& value) override {
    CheckStoreKey(key);
    CheckStoreValue(key, value);
    Call({.kind = StoreRequest::Kind::kSet, .timeout = {}, .key = key, .value = value});
  }

  std::string Get(const std::string& key, milliseconds timeout) override {
    CheckStoreKey(key);
    StoreReply reply =
        Call({.kind = StoreRequest::Kind::kGet, .timeout = timeout, .key = key, .value = {}});
    if (reply.status == StoreReply::Status::kOk) return std::move(reply.value);
    ThrowNotSet(fmt::format("the store at {}", address_), key, timeout);
  }

 private:
  StoreReply Call(const StoreRequest& request) {
    const Deadline deadline = Deadline::After(StoreDeadline(request.timeout).Left() + kAnswerLimit);
    std::unique_ptr<Link> link = TakeLink(deadline);
    StoreReply reply;
    try {
      reply = link->Call(request, deadline);
    } catch (const Error& error) {
      if (error.code() == Code::kUnauthenticated) throw;
      throw Error(Code::kPeerLost, fmt::format("lost the store at {}: {}; the process that serves "
                                               "it has ended or hangs",
                                               address_, error.what()));
    }
    {
      const std::lock_guard lock(mutex_);
      idle_.push_back(std::move(link));
    }
    if (reply.status == StoreReply::Status::kRefused)
      throw Error(Code::kInvalidArgument, reply.value);
    return reply;
  }

  std::unique_ptr<Link> TakeLink(const Deadline& deadline) {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Link> link = std::move(idle_.back());
        idle_.pop_back();
        return link;
      }
    }
    return Connect(address_, secret_, deadline);
  }

  const std::string address_;
  const net::Secret secret_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Link>> idle_;  // Guarded by mutex_.
};

}  // namespace

std::shared_ptr<Store> ConnectTcpStore(const std::string& address, const net::Secret& secret,
                                       milliseconds timeout) {
  return std::make_shared<StoreClient>(address, secret, StoreDeadline(timeout));
}

}  // namespace orca::comm
