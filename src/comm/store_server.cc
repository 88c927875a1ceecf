#include "comm/store_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <exception>
#include <system_error>
#include <utility>
#include <vector>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/log.h"
#include "orca/net/socket.h"

namespace orca::comm {
namespace {

using std::chrono::milliseconds;

void Admit(const net::Hello& hello) {
  if (hello == StoreHello()) return;
  throw Error(Code::kUnauthenticated,
              "a connection that is not for a store came to one; check the addresses");
}

// Clients cannot connect to "any address", so it becomes the best one of this host.
std::string ReachableAddress(const std::string& bound) {
  const std::size_t colon = bound.rfind(':');
  const std::string host = bound.substr(0, colon);
  if (host != "0.0.0.0" && host != "[::]") return bound;
  for (const std::string& address : net::LocalAddresses()) {
    const bool v6 = address.starts_with('[');
    if (host == "[::]" || !v6) return address + bound.substr(colon);
  }
  return bound;
}

// Signals are for the threads of the program.
void BecomeServiceThread() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  ::pthread_setname_np(::pthread_self(), "orca-store");
}

}  // namespace

StoreServer::StoreServer(const std::string& address, const net::Secret& secret)
    : acceptor_(secret, Admit, [this](net::Acceptor::Connection connection) {
        sessions_.emplace_back(std::move(connection.socket), connection.keys, map_);
      }) {
  std::string bound;
  acceptor_.Listen(net::ListenTcp(address, &bound), false);
  address_ = ReachableAddress(bound);
  wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) {
    throw Error(Code::kResourceExhausted,
                fmt::format("cannot make an event descriptor: {}; raise RLIMIT_NOFILE",
                            std::generic_category().message(errno)));
  }
  thread_ = StartThread([this](const std::stop_token& stop) { Serve(stop); });
}

StoreServer::~StoreServer() {
  thread_.request_stop();
  Wake();
}

void StoreServer::Set(const std::string& key, const std::string& value) {
  CheckStoreKey(key);
  CheckStoreValue(key, value);
  map_.Set(key, value);
  Wake();
}

std::string StoreServer::Get(const std::string& key, milliseconds timeout) {
  CheckStoreKey(key);
  if (auto value = map_.WaitFor(key, StoreDeadline(timeout))) return *std::move(value);
  ThrowNotSet(fmt::format("the store at {}", address_), key, timeout);
}

void StoreServer::Wake() {
  const std::uint64_t one = 1;
  // It fails only when the counter is full, and then the thread wakes anyway.
  [[maybe_unused]] const ssize_t wrote = ::write(wake_.get(), &one, sizeof one);
}

void StoreServer::Serve(const std::stop_token& stop) {
  BecomeServiceThread();
  while (!stop.stop_requested()) {
    try {
      ServeOnce();
    } catch (const std::exception& error) {
      Log(LogLevel::kError,
          fmt::format("the store at {} goes on after: {}", address_, error.what()));
    }
  }
}

void StoreServer::ServeOnce() {
  std::vector<pollfd> entries = {{wake_.get(), POLLIN, 0}};
  for (const StoreSession& session : sessions_)
    entries.push_back({session.fd(), session.events(), 0});
  acceptor_.AppendPollFds(entries);
  const std::optional<Deadline> next = NextDeadline();
  // One more, since what is left was rounded down.
  const int timeout =
      next ? static_cast<int>(std::min<std::int64_t>(next->Left().count() + 1, INT_MAX)) : -1;
  if (::poll(entries.data(), entries.size(), timeout) < 0 && errno != EINTR) {
    throw Error(Code::kInternal,
                fmt::format("poll failed: {}", std::generic_category().message(errno)));
  }
  if (entries[0].revents != 0) {
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
  }
  std::size_t at = 1;
  for (StoreSession& session : sessions_) Advance(session, entries[at++].revents);
  // A key that was set may end the waiting of any client, whose next request may set another.
  while (seen_version_ != map_.version()) {
    seen_version_ = map_.version();
    for (StoreSession& session : sessions_) Advance(session, 0);
  }
  sessions_.remove_if([](const StoreSession& session) { return session.over(); });
  acceptor_.Handle();
  refused_ = acceptor_.refused() + forged_;
}

void StoreServer::Advance(StoreSession& session, short revents) {
  try {
    session.Advance(revents);
  } catch (const std::exception& error) {
    // Counted before the client can see that the connection is closed.
    refused_ = acceptor_.refused() + ++forged_;
    Log(LogLevel::kWarning,
        fmt::format("the store at {} closed a connection: {}", address_, error.what()));
  }
}

std::optional<Deadline> StoreServer::NextDeadline() const {
  std::optional<Deadline> next = acceptor_.wake_at();
  for (const StoreSession& session : sessions_) {
    const std::optional<Deadline> at = session.wake_at();
    if (at && (!next || at->at() < next->at())) next = at;
  }
  return next;
}

std::shared_ptr<Store> ServeTcpStore(const std::string& address, const net::Secret& secret,
                                     std::string* bound) {
  auto server = std::make_shared<StoreServer>(address, secret);
  if (bound != nullptr) *bound = server->address();
  return server;
}

}  // namespace orca::comm
