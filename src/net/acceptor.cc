#include "orca/net/acceptor.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/log.h"
#include "orca/net/socket.h"

namespace orca::net {
namespace {

using std::chrono::milliseconds;

constexpr int kAcceptsInARow = 256;  // Before the others have their turn.
constexpr milliseconds kAcceptPause{100};

// Strangers get a quarter of the descriptors: the process needs the rest.
std::size_t PendingLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return Acceptor::kMaxPending;
  return std::clamp<std::size_t>(limit.rlim_cur / 4, 1, Acceptor::kMaxPending);
}

}  // namespace

Acceptor::Acceptor(const Secret& secret, std::function<void(const Hello&)> admit,
                   std::function<void(Connection)> deliver)
    : secret_(secret),
      admit_(std::move(admit)),
      deliver_(std::move(deliver)),
      max_pending_(PendingLimit()) {}

void Acceptor::Listen(UniqueFd listener, bool local) {
  listeners_.push_back({.socket = std::move(listener), .local = local});
}

void Acceptor::AppendPollFds(std::vector<pollfd>& fds) const {
  if (!accept_again_) {
    for (const Listener& listener : listeners_) {
      fds.push_back({.fd = listener.socket.get(), .events = POLLIN, .revents = 0});
    }
  }
  for (const Pending& pending : pending_) {
    if (pending.refused) continue;
    const short events = static_cast<short>(POLLIN | (pending.unsent.empty() ? 0 : POLLOUT));
    fds.push_back({.fd = pending.socket.get(), .events = events, .revents = 0});
  }
}

std::optional<Deadline> Acceptor::wake_at() const {
  std::optional<Deadline> next = accept_again_;
  for (const Pending& pending : pending_) {
    if (!next || pending.deadline.at() < next->at()) next = pending.deadline;
  }
  return next;
}

void Acceptor::Handle() {
  if (accept_again_ && accept_again_->Passed()) accept_again_.reset();
  for (const Listener& listener : listeners_) AcceptNew(listener);
  for (auto it = pending_.begin(); it != pending_.end();) {
    bool finished = true;
    try {
      finished = Advance(*it);
    } catch (const Error& error) {
      Refuse(error);
      // A wrong proof costs time, so that guessing is slow.
      it->refused = error.code() == Code::kUnauthenticated;
      it->deadline = Deadline::After(kPenalty);
      finished = !it->refused;
    }
    it = finished ? pending_.erase(it) : std::next(it);
  }
}

void Acceptor::AcceptNew(const Listener& listener) {
  for (int i = 0; i < kAcceptsInARow && !accept_again_; ++i) {
    try {
      UniqueFd socket = Accept(listener.socket.get());
      if (!socket) return;
      if (listener.local) CheckPeerUser(socket.get());
      if (pending_.size() >= max_pending_) pending_.pop_front();
      pending_.push_back({.socket = std::move(socket),
                          .local = listener.local,
                          .handshake = Handshake::Server(secret_, admit_),
                          .deadline = Deadline::After(kPatience),
                          .unsent = {}});
    } catch (const Error& error) {
      if (error.code() == Code::kResourceExhausted) {
        MakeRoom(error);
      } else {
        Refuse(error);
      }
    }
  }
}

// The connection stays in the kernel's queue, so polling on would spin.
void Acceptor::MakeRoom(const Error& error) {
  if (!pending_.empty()) {
    pending_.pop_front();
    return;
  }
  Log(LogLevel::kWarning, error.what());
  accept_again_ = Deadline::After(kAcceptPause);
}

bool Acceptor::Advance(Pending& pending) {
  if (pending.refused) return pending.deadline.Passed();
  for (;;) {
    auto output = pending.handshake.TakeOutput();
    pending.unsent.insert(pending.unsent.end(), output.begin(), output.end());
    if (!pending.unsent.empty()) {
      const auto sent =
          ::send(pending.socket.get(), pending.unsent.data(), pending.unsent.size(), MSG_NOSIGNAL);
      if (sent > 0) pending.unsent.erase(pending.unsent.begin(), pending.unsent.begin() + sent);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        throw Error(Code::kPeerLost, "a connection closed during the handshake");
      }
    }
    if (pending.handshake.done() && pending.unsent.empty()) {
      deliver_({.socket = std::move(pending.socket),
                .hello = pending.handshake.hello(),
                .keys = pending.handshake.keys(),
                .local = pending.local});
      return true;
    }
    std::array<std::byte, 128> bytes;
    const std::size_t wanted = pending.handshake.wanted();
    const auto got = wanted == 0 ? -1 : ::recv(pending.socket.get(), bytes.data(), wanted, 0);
    if (got > 0) {
      pending.handshake.Feed(std::span(bytes).first(static_cast<std::size_t>(got)));
      continue;
    }
    if (got == 0 || (wanted != 0 && errno != EAGAIN && errno != EINTR)) {
      throw Error(Code::kPeerLost, "a connection closed during the handshake");
    }
    if (pending.deadline.Passed()) {
      throw Error(Code::kTimeout,
                  fmt::format("a connection did not prove itself within {} s", kPatience.count()));
    }
    return false;
  }
}

void Acceptor::Refuse(const Error& error) {
  ++refused_;
  // A flood of strangers must not become a flood of lines: 1, 2, 4, 8, ...
  if (!std::has_single_bit(refused_)) return;
  const bool wrong = error.code() == Code::kUnauthenticated;
  Log(wrong ? LogLevel::kWarning : LogLevel::kDebug,
      fmt::format("refused a connection ({} so far): {}", refused_, error.what()));
}

}  // namespace orca::net
