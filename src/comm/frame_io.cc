#include "comm/frame_io.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "orca/core/crc32c.h"
#include "orca/core/error.h"
#include "orca/core/mutant.h"

namespace orca::comm {
namespace {

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

void FrameWriter::Begin(net::FrameHeader header, ConstBytes payload) {
  header.length = static_cast<std::uint32_t>(payload.size());
  header.payload_crc = Crc32c(payload.data(), payload.size());
  net::Encode(header, header_);
  payload_ = payload;
  sent_ = 0;
}

bool FrameWriter::TrySend() {
  bool moved = false;
  while (!idle()) {
    std::array<iovec, 2> parts{};
    std::size_t count = 0;
    if (sent_ < header_.size()) {
      parts[count++] = {.iov_base = header_.data() + sent_, .iov_len = header_.size() - sent_};
    }
    const std::size_t payload_sent = sent_ > header_.size() ? sent_ - header_.size() : 0;
    if (payload_sent < payload_.size()) {
      parts[count++] = {.iov_base = const_cast<std::byte*>(payload_.data()) + payload_sent,
                        .iov_len = payload_.size() - payload_sent};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const auto sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (WouldBlock(errno)) return moved;
      throw Error(Code::kPeerLost,
                  fmt::format("the connection to {} broke: {}", peer_, std::strerror(errno)));
    }
    sent_ += static_cast<std::size_t>(sent);
    moved = true;
  }
  return moved;
}

bool FrameReader::TryRecv(FrameSink& sink) {
  bool moved = false;
  if (closed_) return moved;
  for (;;) {
    while (Consume(sink)) moved = true;
    if (held()) return moved;
    // Here the buffer is empty, or holds a part of a header.
    if (begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, Buffered());
      end_ -= begin_;
      begin_ = 0;
    }
    std::array<iovec, 2> parts{};
    std::size_t count = 0;
    const std::size_t missing = placed_ ? payload_.size() - received_ : 0;
    if (missing > 0) parts[count++] = {.iov_base = payload_.data() + received_, .iov_len = missing};
    parts[count++] = {.iov_base = buffer_.data() + end_, .iov_len = buffer_.size() - end_};
    const std::size_t room = missing + buffer_.size() - end_;
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const auto got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (got < 0 && WouldBlock(errno)) return moved;
    if (got == 0 && !header_ && Buffered() == 0) {
      closed_ = true;
      return moved;
    }
    if (got <= 0) {
      throw Error(Code::kPeerLost,
                  fmt::format("the connection from {} {}", peer_,
                              got == 0 ? "ended in the middle of a message: it exited or was killed"
                                       : fmt::format("broke: {}", std::strerror(errno))));
    }
    const auto bytes = static_cast<std::size_t>(got);
    const std::size_t direct = std::min(bytes, missing);
    received_ += direct;
    end_ += bytes - direct;
    moved = true;
    while (Consume(sink)) {
    }
    // A read that did not fill its buffers emptied the socket: asking again would only cost a
    // system call.
    if (bytes < room) return moved;
  }
}

// Takes one step with what is in the buffer; false when more must arrive or the sink has no place.
bool FrameReader::Consume(FrameSink& sink) {
  if (!header_) {
    if (Buffered() < net::kFrameHeaderBytes) return false;
    header_ = net::Decode(std::span<const std::byte, net::kFrameHeaderBytes>(
        buffer_.data() + begin_, net::kFrameHeaderBytes));
    begin_ += net::kFrameHeaderBytes;
  }
  if (!placed_) {
    const auto place = sink.Place(*header_);
    if (!place) return false;
    payload_ = *place;
    received_ = 0;
    placed_ = true;
  }
  const std::size_t ready = std::min(Buffered(), payload_.size() - received_);
  if (ready > 0) std::memcpy(payload_.data() + received_, buffer_.data() + begin_, ready);
  begin_ += ready;
  received_ += ready;
  if (received_ < payload_.size()) return false;
  if (const std::uint32_t crc = Crc32c(payload_.data(), payload_.size());
      crc != header_->payload_crc && !IsMutant("frame-crc")) {
    throw Error(Code::kPeerLost, fmt::format("the connection from {} brought {} damaged bytes "
                                             "(CRC32C {:08x} instead of {:08x}); the "
                                             "network or a host's memory is faulty",
                                             peer_, payload_.size(), crc, header_->payload_crc));
  }
  const net::FrameHeader done = *header_;
  header_.reset();
  placed_ = false;
  sink.Finish(done);
  return true;
}

}  // namespace orca::comm
