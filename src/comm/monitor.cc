#include "comm/monitor.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/log.h"
#include "orca/core/mutant.h"
#include "orca/net/socket.h"

namespace orca::comm {
namespace {

using Clock = Deadline::Clock;
using Seconds = std::chrono::duration<double>;

constexpr std::chrono::milliseconds kFarewell(500);

}  // namespace

Monitor::Monitor(MonitorOptions options)
    : options_(std::move(options)),
      acceptor_(
          options_.secret,
          [this](const net::Hello& hello) {
            if ((hello.job != options_.job || hello.generation != options_.generation) &&
                !IsMutant("generation")) {
              throw Error(
                  Code::kUnauthenticated,
                  fmt::format(
                      "a process of another group or generation ({}, this one is {}) was refused",
                      hello.generation, options_.generation));
            }
            if (hello.rank >= static_cast<std::uint32_t>(options_.world)) {
              throw Error(Code::kUnauthenticated, fmt::format("rank {} is not in this group of {}",
                                                              hello.rank, options_.world));
            }
          },
          [this](net::Acceptor::Connection connection) { TakeConnection(std::move(connection)); }),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      left_(static_cast<std::size_t>(options_.world)) {
  if (!wake_) throw Error(Code::kResourceExhausted, DescribeLimitError(errno));
}

Monitor::~Monitor() { Leave(); }

void Monitor::Start() {
  ready_ = options_.world == 1;
  if (ready_) return;  // There is nobody to hear from.
  thread_ = StartThread([this](const std::stop_token& stop) { Loop(stop); });
}

void Monitor::ConnectHub(UniqueFd socket, const net::SessionKeys& keys) {
  {
    const std::lock_guard lock(mutex_);
    AddLink(0, std::move(socket), net::SealedChannel(keys, net::SealedChannel::Side::kClient));
  }
  Wake();
}

void Monitor::WaitUntilReady(const Deadline& deadline, const std::function<bool()>& cancelled) {
  constexpr std::chrono::milliseconds kLook(20);
  std::unique_lock lock(mutex_);
  const auto decided = [this] { return ready_ || failed_; };
  while (!changed_.wait_until(lock, std::min(deadline.at(), Deadline::Clock::now() + kLook),
                              decided) &&
         !deadline.Passed()) {
    lock.unlock();  // who is asked may hold a lock of their own
    if (cancelled && cancelled())
      throw Error(Code::kAborted, "it was cancelled while the group formed");
    lock.lock();
  }
  if (ready_) return;  // a group that ended right after it formed says so in its first call
  if (failed_) throw Error(failure_.code, failure_.text);
  std::string missing;
  for (int rank = 1; rank < options_.world && options_.rank == 0; ++rank) {
    if (links_.contains(rank)) continue;
    missing += (missing.empty() ? "" : ", ") + options_.names[static_cast<std::size_t>(rank)];
  }
  throw Error(
      Code::kTimeout,
      fmt::format("the group did not form in time: {}",
                  options_.rank == 0 ? "no connection from " + missing
                                     : std::string("rank 0 did not say that all are there")));
}

void Monitor::Fail(const Failure& failure) {
  {
    const std::lock_guard lock(mutex_);
    FailLocked(failure, options_.rank);
  }
  Wake();
}

void Monitor::Leave() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [rank, link] : links_) {
      if (link.socket) Queue(link, Type::kLeft);
    }
  }
  thread_.request_stop();
  Wake();
  thread_.join();
}

void Monitor::Wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof(one));
}

void Monitor::Loop(const std::stop_token& stop) {
  ::pthread_setname_np(::pthread_self(), "orca-monitor");
  const auto interval = BeatInterval(options_.peer_timeout);
  auto next_beat = Clock::now();
  std::vector<pollfd> fds;
  std::optional<Deadline> farewell;
  for (;;) {
    fds.assign(1, {.fd = wake_.get(), .events = POLLIN, .revents = 0});
    acceptor_.AppendPollFds(fds);
    bool unsent = false;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [rank, link] : links_) {
        if (!link.socket) continue;
        unsent |= !link.unsent.empty();
        const short events = static_cast<short>(POLLIN | (link.unsent.empty() ? 0 : POLLOUT));
        fds.push_back({.fd = link.socket.get(), .events = events, .revents = 0});
      }
    }
    if (stop.stop_requested()) {
      if (!farewell) farewell = Deadline::After(kFarewell);
      if (!unsent || farewell->Passed()) return;
    }
    auto wake_at = next_beat;
    if (const auto acceptor_wakes = acceptor_.wake_at())
      wake_at = std::min(wake_at, acceptor_wakes->at());
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(wake_at - Clock::now());
    ::poll(fds.data(), fds.size(),
           static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, interval.count())));
    if (fds.front().revents != 0) {
      std::uint64_t count = 0;
      [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof(count));
    }
    acceptor_.Handle();
    const std::lock_guard lock(mutex_);
    for (auto& [rank, link] : links_) {
      if (link.socket) Read(rank, link);
    }
    if (Clock::now() >= next_beat) {
      next_beat = Clock::now() + interval;
      Beat();
    }
    FlushLinks();
  }
}

void Monitor::TakeConnection(net::Acceptor::Connection connection) {
  if (static_cast<Role>(connection.hello.role) != Role::kControl) {
    options_.on_connection(std::move(connection));
    return;
  }
  const std::lock_guard lock(mutex_);
  const int rank = static_cast<int>(connection.hello.rank);
  if (options_.rank != 0 || rank == 0 || links_.contains(rank))
    return;  // not for us, or a second one: close it
  AddLink(rank, std::move(connection.socket),
          net::SealedChannel(connection.keys, net::SealedChannel::Side::kServer));
  if (static_cast<int>(links_.size()) == options_.world - 1) {
    for (auto& [peer, link] : links_) Queue(link, Type::kReady);
    ready_ = true;
    changed_.notify_all();
  }
}

void Monitor::AddLink(int rank, UniqueFd socket, net::SealedChannel channel) {
  Link link{.socket = std::move(socket),
            .channel = std::move(channel),
            .unsent = {},
            .heard = Clock::now()};
  if (failed_) Queue(link, Type::kFailed, failure_);
  links_.emplace(rank, std::move(link));
}

void Monitor::Read(int rank, Link& link) {
  std::array<std::byte, 4096> bytes;
  for (;;) {
    const auto got = ::recv(link.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      LoseLink(rank, link,
               got == 0 ? "closed its connection: it exited or was killed"
                        : fmt::format("is out of reach: {}", std::strerror(errno)));
      return;
    }
    link.heard = Clock::now();
    try {
      link.channel.Feed(std::span(bytes).first(static_cast<std::size_t>(got)));
      while (const auto message = link.channel.Next()) HandleMessage(rank, link, *message);
    } catch (const Error& error) {
      LoseLink(rank, link, fmt::format("sent something that is not genuine: {}", error.what()));
      return;
    }
  }
}

void Monitor::HandleMessage(int rank, Link& link, std::span<const std::byte> message) {
  if (message.empty()) return;
  switch (static_cast<Type>(message[0])) {
    case Type::kBeat:
      return;
    case Type::kReady:
      ready_ = true;
      changed_.notify_all();
      return;
    case Type::kLeft:
      if (message.size() == 1 + sizeof(std::uint32_t)) {
        std::uint32_t gone = 0;
        std::memcpy(&gone, message.data() + 1, sizeof(gone));
        if (gone < left_.size()) NoteLeft(static_cast<int>(gone));
        return;
      }
      link.left = true;
      NoteLeft(rank);
      return;
    case Type::kFailed:
      if (message.size() < 2) return;
      FailLocked({.code = static_cast<Code>(message[1]),
                  .text = std::string(reinterpret_cast<const char*>(message.data()) + 2,
                                      message.size() - 2)},
                 rank);
      return;
  }
}

void Monitor::Beat() {
  options_.heartbeat();
  const auto now = Clock::now();
  for (auto& [rank, link] : links_) {
    if (!link.socket || link.left) continue;
    if (link.unsent.empty()) Queue(link, Type::kBeat);
    if (const auto silence = now - link.heard; silence > options_.peer_timeout) {
      LoseLink(
          rank, link,
          fmt::format("has been silent for {:.1f} s (limit {:.1f} s): stopped, frozen or cut off",
                      Seconds(silence).count(), Seconds(options_.peer_timeout).count()));
    }
  }
}

void Monitor::Queue(Link& link, Type type, const Failure& failure) {
  std::vector<std::byte> message{static_cast<std::byte>(type)};
  if (type == Type::kFailed) {
    message.push_back(static_cast<std::byte>(failure.code));
    const auto text = std::as_bytes(std::span(failure.text));
    message.insert(message.end(), text.begin(), text.end());
  }
  const auto frame = link.channel.Seal(message);
  link.unsent.insert(link.unsent.end(), frame.begin(), frame.end());
}

void Monitor::FlushLinks() {
  for (auto& [rank, link] : links_) {
    while (link.socket && !link.unsent.empty()) {
      const auto sent = ::send(link.socket.get(), link.unsent.data(), link.unsent.size(),
                               MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent <= 0) {
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
          const int error = errno;
          Read(rank, link);  // it may have said farewell and closed since we looked
          if (link.socket)
            LoseLink(rank, link, fmt::format("is out of reach: {}", std::strerror(error)));
        }
        break;
      }
      link.unsent.erase(link.unsent.begin(), link.unsent.begin() + sent);
    }
  }
}

void Monitor::LoseLink(int rank, Link& link, const std::string& why) {
  link.socket.Reset();
  link.unsent.clear();
  if (link.left) return;
  FailLocked({.code = Code::kPeerLost,
              .text = fmt::format("{} lost {}: it {}",
                                  options_.names[static_cast<std::size_t>(options_.rank)],
                                  options_.names[static_cast<std::size_t>(rank)], why)},
             rank);
}

void Monitor::NoteLeft(int rank) {
  left_[static_cast<std::size_t>(rank)].store(true, std::memory_order_release);
  if (options_.rank == 0) {
    const auto gone = static_cast<std::uint32_t>(rank);
    std::vector<std::byte> message{static_cast<std::byte>(Type::kLeft)};
    const auto bytes = std::as_bytes(std::span(&gone, 1));
    message.insert(message.end(), bytes.begin(), bytes.end());
    for (auto& [peer, link] : links_) {
      if (peer == rank || !link.socket || link.left) continue;
      const auto frame = link.channel.Seal(message);
      link.unsent.insert(link.unsent.end(), frame.begin(), frame.end());
    }
  }
  options_.on_left();
}

void Monitor::FailLocked(const Failure& failure, int from) {
  if (failed_) return;
  failed_ = true;
  failure_ = failure;
  for (auto& [rank, link] : links_) {
    if (rank != from && link.socket && !link.left) Queue(link, Type::kFailed, failure);
  }
  options_.on_failure(failure);
  changed_.notify_all();
}

}  // namespace orca::comm
