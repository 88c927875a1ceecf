#include "comm/messenger.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/host.h"

namespace orca::comm {
namespace {

using Clock = Deadline::Clock;
using Seconds = std::chrono::duration<double>;

constexpr std::size_t kPieceBytes = std::size_t{256} << 10;
constexpr std::chrono::milliseconds kNap(100);

}  // namespace

/// What comes from one peer: one message at a time, in one or more frames.
class Messenger::Inbox final : public FrameSink {
 public:
  Inbox(Messenger& owner, int peer, UniqueFd socket)
      : owner_(owner),
        peer_(peer),
        reader_(std::move(socket), owner.options_.names[static_cast<std::size_t>(peer)]) {}

  bool Progress(Finished& finished) {
    finished_ = &finished;
    return reader_.TryRecv(*this);
  }
  bool held() const { return reader_.held(); }
  bool closed() const { return reader_.closed(); }
  int fd() const { return reader_.fd(); }
  /// The receive whose message is arriving, if any.
  std::optional<Request>& current() { return current_; }

  std::optional<Bytes> Place(const net::FrameHeader& header) override {
    if (!current_ && aside_ == nullptr) {
      if (header.offset != 0) {
        throw Error(Code::kPeerLost, "a message without a beginning came");
      }
      if (!Match(header)) return std::nullopt;
    }
    const Bytes target = current_ ? current_->recv : Bytes(aside_->data);
    if (header.offset > target.size() || header.length > target.size() - header.offset) {
      throw Error(Code::kPeerLost, "a piece lies outside its message");
    }
    return target.subspan(header.offset, header.length);
  }

  void Finish(const net::FrameHeader& header) override {
    if (header.offset + header.length < header.total) return;
    if (current_) {
      finished_->push_back({current_->work, {nullptr, peer_}});
      current_.reset();
    } else {
      aside_->complete = true;
      aside_ = nullptr;
    }
  }

 private:
  bool Match(const net::FrameHeader& header) {
    // What follows a message that was put aside with the same tag must queue behind it.
    const bool queues = PutAsideBefore(header.message);
    bool waits_for_another = false;
    for (auto it = owner_.recvs_.begin(); it != owner_.recvs_.end(); ++it) {
      if (it->peer != peer_ && it->peer != kAnySource) continue;
      if (it->tag != header.message || queues) {
        waits_for_another = true;
        continue;
      }
      if (it->recv.size() != header.total) {
        throw Error(
            Code::kMismatch,
            fmt::format("{} sends {} bytes with tag {}, but {} expects {}; give both the same size",
                        owner_.options_.names[static_cast<std::size_t>(peer_)], header.total,
                        header.message,
                        owner_.options_.names[static_cast<std::size_t>(owner_.options_.rank)],
                        it->recv.size()));
      }
      current_ = std::move(*it);
      owner_.recvs_.erase(it);
      return true;
    }
    if (!waits_for_another) return false;
    owner_.unexpected_.push_back(
        {.peer = peer_, .tag = header.message, .data = std::vector<std::byte>(header.total)});
    aside_ = &owner_.unexpected_.back();
    return true;
  }

  bool PutAsideBefore(std::uint64_t tag) const {
    return std::any_of(
        owner_.unexpected_.begin(), owner_.unexpected_.end(),
        [&](const Unexpected& message) { return message.peer == peer_ && message.tag == tag; });
  }

  Messenger& owner_;
  int peer_;
  FrameReader reader_;
  std::optional<Request> current_;
  Unexpected* aside_ = nullptr;
  Finished* finished_ = nullptr;
};

Messenger::Messenger(MessengerOptions options)
    : options_(std::move(options)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw Error(Code::kResourceExhausted, DescribeLimitError(errno));
}

Messenger::~Messenger() {
  if (thread_.joinable()) {
    thread_.request_stop();
    Wake();
    thread_.join();
  }
  Finished finished;
  {
    const std::lock_guard lock(mutex_);
    FailAll({.code = Code::kAborted, .text = "the group was closed while a message was under way"},
            finished);
  }
  for (auto& [work, result] : finished) work->Finish(result.first, result.second);
}

void Messenger::AddLink(int peer, UniqueFd socket) {
  {
    const std::lock_guard lock(arrived_mutex_);
    arrived_.emplace_back(peer, std::move(socket));
  }
  Wake();
}

void Messenger::AdoptLinks() {
  const std::lock_guard lock(arrived_mutex_);
  for (auto& [peer, socket] : arrived_) {
    inboxes_[peer] = std::make_unique<Inbox>(*this, peer, std::move(socket));
    closed_.erase(peer);
  }
  arrived_.clear();
}

// Dials without the lock: others may start calls meanwhile, and two ranks that dial each other
// answer each other.
void Messenger::ConnectOutboxes() {
  for (;;) {
    std::optional<Request> request;
    {
      const std::lock_guard lock(mutex_);
      for (auto& [peer, outbox] : outboxes_) {
        if (outbox.requests.empty() || outbox.writer || outbox.connecting) continue;
        outbox.connecting = true;
        request = outbox.requests.front();
        break;
      }
    }
    if (!request) return;
    UniqueFd socket;
    std::exception_ptr error;
    try {
      socket = options_.connect(request->peer, request->deadline);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    Outbox& outbox = outboxes_[request->peer];
    outbox.connecting = false;
    if (error) std::rethrow_exception(error);
    outbox.writer.emplace(std::move(socket),
                          options_.names[static_cast<std::size_t>(request->peer)]);
  }
}

void Messenger::Wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof(one));
}

std::shared_ptr<Work::State> Messenger::StartSend(ConstBytes data, int peer, std::uint64_t tag,
                                                  const Deadline& deadline, DoneCallback done) {
  auto work = std::make_shared<Work::State>();
  work->callback = std::move(done);
  const std::lock_guard lock(mutex_);
  outboxes_[peer].requests.push_back({.work = work,
                                      .peer = peer,
                                      .tag = tag,
                                      .deadline = deadline,
                                      .since = Clock::now(),
                                      .send = data,
                                      .begun = 0,
                                      .recv = {}});
  return work;
}

std::shared_ptr<Work::State> Messenger::StartRecv(Bytes data, int peer, std::uint64_t tag,
                                                  const Deadline& deadline, DoneCallback done) {
  auto work = std::make_shared<Work::State>();
  work->callback = std::move(done);
  const std::lock_guard lock(mutex_);
  recvs_.push_back({.work = work,
                    .peer = peer,
                    .tag = tag,
                    .deadline = deadline,
                    .since = Clock::now(),
                    .send = {},
                    .begun = 0,
                    .recv = data});
  return work;
}

bool Messenger::ProgressOutbox(Outbox& outbox, Finished& finished) {
  if (outbox.requests.empty() || !outbox.writer) return false;
  bool moved = false;
  while (!outbox.requests.empty()) {
    Request& request = outbox.requests.front();
    if (outbox.writer->idle()) {
      if (outbox.sending && request.begun == request.send.size()) {
        finished.push_back({request.work, {nullptr, -1}});
        outbox.requests.pop_front();
        outbox.sending = false;
        continue;
      }
      const std::size_t length = std::min(kPieceBytes, request.send.size() - request.begun);
      net::FrameHeader header;
      header.message = request.tag;
      header.total = request.send.size();
      header.offset = request.begun;
      outbox.writer->Begin(header, request.send.subspan(request.begun, length));
      request.begun += length;
      outbox.sending = true;
    }
    moved |= outbox.writer->TrySend();
    if (!outbox.writer->idle()) break;
  }
  return moved;
}

bool Messenger::ProgressLocked(Finished& finished) {
  bool moved = false;
  AdoptLinks();
  // What was put aside for a receive that has now been posted.
  for (auto it = unexpected_.begin(); it != unexpected_.end();) {
    const auto wanted = std::find_if(recvs_.begin(), recvs_.end(), [&](const Request& request) {
      return (request.peer == it->peer || request.peer == kAnySource) && request.tag == it->tag;
    });
    if (!it->complete || wanted == recvs_.end()) {
      ++it;
      continue;
    }
    if (wanted->recv.size() != it->data.size()) {
      throw Error(
          Code::kMismatch,
          fmt::format(
              "{} sent {} bytes with tag {}, but {} bytes are expected; give both the same size",
              options_.names[static_cast<std::size_t>(it->peer)], it->data.size(), it->tag,
              wanted->recv.size()));
    }
    std::copy(it->data.begin(), it->data.end(), wanted->recv.begin());
    finished.push_back({wanted->work, {nullptr, it->peer}});
    recvs_.erase(wanted);
    it = unexpected_.erase(it);
    moved = true;
  }
  for (auto& [peer, outbox] : outboxes_) moved |= ProgressOutbox(outbox, finished);
  for (auto it = inboxes_.begin(); it != inboxes_.end();) {
    auto& [peer, inbox] = *it;
    try {
      if (!recvs_.empty() || inbox->current()) moved |= inbox->Progress(finished);
    } catch (const Error& error) {
      if (error.code() != Code::kPeerLost || inbox->current()) throw;
      closed_[peer] = error.what();  // matters only to those who wait for this peer
    }
    if (inbox->closed()) {
      closed_[peer] = fmt::format("{} closed its connection: it left, exited or was killed",
                                  options_.names[static_cast<std::size_t>(peer)]);
    }
    it = closed_.contains(peer) ? inboxes_.erase(it) : std::next(it);
  }
  for (const Request& request : recvs_) {
    if (const auto closed = closed_.find(request.peer); closed != closed_.end()) {
      throw Error(Code::kPeerLost, closed->second);
    }
  }
  return moved;
}

void Messenger::FailAll(const Failure& failure, Finished& finished) {
  const auto error = std::make_exception_ptr(Error(failure.code, failure.text));
  for (auto& [peer, outbox] : outboxes_) {
    for (Request& request : outbox.requests) finished.push_back({request.work, {error, -1}});
  }
  for (auto& [peer, inbox] : inboxes_) {
    if (inbox->current()) finished.push_back({inbox->current()->work, {error, -1}});
  }
  for (Request& request : recvs_) finished.push_back({request.work, {error, -1}});
  // The links go, too: half a message there may still point into a caller's memory.
  outboxes_.clear();
  inboxes_.clear();
  recvs_.clear();
}

void Messenger::NotePeerReturned(int peer) {
  // What it sent is on its way, and another thread there may still be at it.
  constexpr int kGraces = 5;
  const std::lock_guard lock(mutex_);
  returned_.emplace(peer, Deadline::After(kGraces * options_.grace));
}

void Messenger::ForgetReturned() {
  const std::lock_guard lock(mutex_);
  returned_.clear();
}

bool Messenger::WaitsInVain(const Request& request) const {
  if (request.peer == kAnySource)
    return returned_.size() + 1 == options_.names.size() &&
           std::ranges::all_of(returned_, [](const auto& entry) { return entry.second.Passed(); });
  const auto found = returned_.find(request.peer);
  return found != returned_.end() && found->second.Passed();
}

void Messenger::CheckDeadlines(Finished& finished) {
  if (IdleLocked()) return;
  if (const auto failure = options_.failure()) {
    FailAll(*failure, finished);
    return;
  }
  const auto check = [&](const Request& request, const char* what) {
    if (!request.deadline.Passed()) return;
    const std::string peer = request.peer == kAnySource
                                 ? std::string("any rank")
                                 : options_.names[static_cast<std::size_t>(request.peer)];
    throw Error(Code::kTimeout,
                fmt::format("{} waits to {} {} (tag {}); waited {:.1f} s, the deadline has passed",
                            options_.names[static_cast<std::size_t>(options_.rank)], what, peer,
                            request.tag, Seconds(Clock::now() - request.since).count()));
  };
  for (const auto& [peer, outbox] : outboxes_) {
    for (const Request& request : outbox.requests) check(request, "send to");
  }
  for (const Request& request : recvs_) {
    check(request, "receive from");
    if (!WaitsInVain(request)) continue;
    throw Error(
        Code::kMismatch,
        fmt::format("{} has returned, while {} waits for a message (tag {}) that it did not "
                    "send",
                    request.peer == kAnySource
                        ? std::string("every other rank")
                        : options_.names[static_cast<std::size_t>(request.peer)],
                    options_.names[static_cast<std::size_t>(options_.rank)], request.tag));
  }
  for (const auto& [peer, inbox] : inboxes_) {
    if (inbox->current()) check(*inbox->current(), "receive from");
  }
}

bool Messenger::Round() {
  Finished finished;
  bool moved = false;
  std::optional<Failure> failure;
  try {
    ConnectOutboxes();
    const std::lock_guard lock(mutex_);
    moved = ProgressLocked(finished);
    if (!moved) CheckDeadlines(finished);
  } catch (const Error& error) {
    failure = Failure{.code = error.code(), .text = error.what()};
  } catch (const std::exception& error) {
    failure = Failure{.code = Code::kResourceExhausted,
                      .text = fmt::format("exchanging messages failed: {}", error.what())};
  }
  if (failure) {
    if (failure->code == Code::kPeerLost)
      failure = FirstCause(*failure, options_.failure, options_.grace);
    options_.on_failure(*failure);
    const std::lock_guard lock(mutex_);
    FailAll(*failure, finished);
  }
  for (auto& [work, result] : finished) work->Finish(result.first, result.second);
  return moved || !finished.empty();
}

void Messenger::Sleep(std::chrono::milliseconds limit) {
  std::vector<pollfd> fds{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [peer, outbox] : outboxes_) {
      if (outbox.writer && !outbox.writer->idle()) {
        fds.push_back({.fd = outbox.writer->fd(), .events = POLLOUT, .revents = 0});
      }
    }
    for (const auto& [peer, inbox] : inboxes_) {
      const bool wanted = !recvs_.empty() || inbox->current();
      if (wanted && !inbox->held())
        fds.push_back({.fd = inbox->fd(), .events = POLLIN, .revents = 0});
    }
  }
  ::poll(fds.data(), fds.size(), static_cast<int>(limit.count()));
  if (fds.front().revents != 0) {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof(count));
  }
}

void Messenger::Drive(const Work::State& work) {
  auto spin_until = Clock::now() + options_.spin;
  while (!work.done.load(std::memory_order_acquire)) {
    if (Round()) {
      spin_until = Clock::now() + options_.spin;
    } else if (Clock::now() >= spin_until) {
      Sleep(kNap);
    }
  }
}

bool Messenger::IdleLocked() const {
  if (!recvs_.empty()) return false;
  for (const auto& [peer, outbox] : outboxes_) {
    if (!outbox.requests.empty()) return false;
  }
  return std::none_of(inboxes_.begin(), inboxes_.end(),
                      [](const auto& entry) { return entry.second->current().has_value(); });
}

void Messenger::EnsureThread() {
  const std::lock_guard lock(mutex_);
  if (thread_.joinable()) return;
  thread_ = StartThread([this](const std::stop_token& stop) { Loop(stop); });
}

void Messenger::DriveInBackground() {
  const std::lock_guard lock(mutex_);
  background_ = true;
  posted_.notify_all();
  Wake();
}

void Messenger::Loop(const std::stop_token& stop) {
  ::pthread_setname_np(::pthread_self(), "orca-messages");
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex_);
      if (IdleLocked()) background_ = false;
      if (!posted_.wait(lock, stop, [this] { return background_; })) return;
    }
    if (!Round()) Sleep(kNap);
  }
}

}  // namespace orca::comm
