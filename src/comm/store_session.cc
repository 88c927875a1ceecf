#include "comm/store_session.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "orca/core/error.h"

namespace orca::comm {
namespace {

bool TryLater(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

StoreSession::StoreSession(UniqueFd fd, const net::SessionKeys& keys, StoreMap& map)
    : fd_(std::move(fd)),
      map_(map),
      channel_(keys, net::SealedChannel::Side::kServer, kMaxStoreMessage) {}

short StoreSession::events() const {
  if (!output_.empty()) return POLLOUT;
  return phase_ == Phase::kWaiting ? POLLRDHUP : POLLIN;
}

void StoreSession::Advance(short revents) {
  const bool reading = (events() & POLLIN) != 0;
  const bool closed = (revents & (POLLHUP | POLLRDHUP)) != 0;
  if ((revents & (POLLERR | POLLNVAL)) != 0 || (closed && !reading)) phase_ = Phase::kOver;
  if (over()) return;
  try {
    if ((revents & POLLOUT) != 0) Flush();
    if (reading && revents != 0) Read();
    if (phase_ == Phase::kWaiting) CheckWaiting();
    TakeRequests();
  } catch (...) {
    phase_ = Phase::kOver;
    throw;
  }
}

void StoreSession::Read() {
  std::array<std::byte, 16 * 1024> buffer;
  const ssize_t got = ::recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0 && TryLater(errno)) return;
  if (got <= 0) {
    phase_ = Phase::kOver;
    return;
  }
  channel_.Feed(std::span(buffer).first(static_cast<std::size_t>(got)));
}

void StoreSession::TakeRequests() {
  while (phase_ == Phase::kServing && output_.empty()) {
    const auto message = channel_.Next();
    if (!message) return;
    Handle(DecodeStoreRequest(*message));
  }
}

void StoreSession::Handle(StoreRequest request) {
  try {
    CheckStoreKey(request.key);
    CheckStoreValue(request.key, request.value);
  } catch (const Error& error) {
    return Reply({StoreReply::Status::kRefused, error.what()});
  }
  if (request.kind == StoreRequest::Kind::kSet) {
    map_.Set(request.key, request.value);
    return Reply({});
  }
  awaited_ = std::move(request.key);
  deadline_ = StoreDeadline(request.timeout);
  phase_ = Phase::kWaiting;
  CheckWaiting();
}

void StoreSession::CheckWaiting() {
  std::optional<std::string> value = map_.Find(awaited_);
  if (!value && !deadline_->Passed()) return;
  phase_ = Phase::kServing;
  deadline_.reset();
  if (value) return Reply({StoreReply::Status::kOk, *std::move(value)});
  Reply({StoreReply::Status::kNotSet, {}});
}

void StoreSession::Reply(const StoreReply& reply) {
  output_ = channel_.Seal(Encode(reply));
  Flush();
}

void StoreSession::Flush() {
  while (sent_ < output_.size()) {
    const ssize_t sent = ::send(fd_.get(), output_.data() + sent_, output_.size() - sent_,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && TryLater(errno)) return;
    if (sent < 0) {
      phase_ = Phase::kOver;
      return;
    }
    sent_ += static_cast<std::size_t>(sent);
  }
  output_.clear();
  sent_ = 0;
}

}  // namespace orca::comm
