#include "testing/proxy.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "orca/core/error.h"
#include "orca/net/socket.h"

namespace orca::testing {

ChaosProxy::ChaosProxy(std::string target, Chaos chaos, std::size_t at)
    : target_(std::move(target)), chaos_(chaos), at_(at), wake_(::eventfd(0, EFD_CLOEXEC)) {
  listener_ = net::ListenTcp("127.0.0.1:0", &address_);
  thread_ = std::jthread([this](const std::stop_token& stop) { Loop(stop); });
}

ChaosProxy::~ChaosProxy() {
  thread_.request_stop();
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof(one));
}

void ChaosProxy::Loop(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::vector<pollfd> fds{{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                            {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Tunnel& tunnel : tunnels_) {
      fds.push_back({.fd = tunnel.client.get(), .events = POLLIN, .revents = 0});
      fds.push_back({.fd = tunnel.server.get(), .events = POLLIN, .revents = 0});
    }
    ::poll(fds.data(), fds.size(), -1);
    std::size_t at = 2;
    for (auto it = tunnels_.begin(); it != tunnels_.end(); at += 2) {
      bool alive = true;
      if (fds[at].revents != 0) alive = Pass(it->client.get(), it->server.get(), true);
      if (alive && fds[at + 1].revents != 0)
        alive = Pass(it->server.get(), it->client.get(), false);
      it = alive ? std::next(it) : tunnels_.erase(it);
    }
    if (chaos_ == Chaos::kClose && passed_ >= at_) tunnels_.clear();
    while (UniqueFd client = net::Accept(listener_.get())) {
      const auto deadline = Deadline::After(std::chrono::seconds(10));
      tunnels_.push_back(
          {.client = std::move(client), .server = net::ConnectTcp(std::array{target_}, deadline)});
    }
  }
}

bool ChaosProxy::Pass(int from, int to, bool from_client) {
  std::array<std::byte, 16384> bytes;
  const auto got = ::recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  std::size_t count = static_cast<std::size_t>(got);
  if (from_client) {
    const std::size_t before = passed_;
    const bool here = before <= at_ && at_ < before + count;
    if (here && chaos_ == Chaos::kFlipBit) bytes[at_ - before] ^= std::byte{0x10};
    if (here && chaos_ == Chaos::kClose) count = at_ - before;
    passed_ = before + count;
    if (here && chaos_ == Chaos::kClose) passed_ = at_;
  }
  try {
    net::SendAll(to, std::span(bytes).first(count), Deadline::After(std::chrono::seconds(10)));
  } catch (const Error&) {
    return false;
  }
  return true;
}

}  // namespace orca::testing
