// Frames over a non-blocking socket, one direction a connection.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "orca/comm/communicator.h"
#include "orca/core/unique_fd.h"
#include "orca/net/frame.h"

namespace orca::comm {

/// Sends frames. Not thread-safe.
class FrameWriter {
 public:
  FrameWriter(UniqueFd socket, std::string peer)
      : socket_(std::move(socket)), peer_(std::move(peer)) {}

  int fd() const { return socket_.get(); }
  /// Whether the last frame is on its way and another may begin.
  bool idle() const { return sent_ == net::kFrameHeaderBytes + payload_.size(); }
  /// Begins a frame; fills in length and checksum. `payload` is borrowed until idle().
  void Begin(net::FrameHeader header, ConstBytes payload);
  /// Sends what the socket takes; returns whether bytes moved. Throws kPeerLost.
  bool TrySend();

 private:
  UniqueFd socket_;
  std::string peer_;
  std::array<std::byte, net::kFrameHeaderBytes> header_{};
  ConstBytes payload_;
  std::size_t sent_ = net::kFrameHeaderBytes;  // of header and payload together
};

/// Decides where frames go.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  /// Returns memory for the payload, or nothing while nobody wants it: the frame then waits, and
  /// all behind it.
  virtual std::optional<Bytes> Place(const net::FrameHeader& header) = 0;
  /// The payload is in place and its checksum is right.
  virtual void Finish(const net::FrameHeader& header) = 0;
};

/// Receives frames. Not thread-safe.
class FrameReader {
 public:
  FrameReader(UniqueFd socket, std::string peer)
      : socket_(std::move(socket)), peer_(std::move(peer)) {}

  int fd() const { return socket_.get(); }
  /// Whether a frame waits for its place: polling the socket would not help.
  bool held() const { return header_.has_value() && !placed_; }
  /// Whether the peer closed the connection after a whole frame: an end for those who wait for
  /// more, else a farewell.
  bool closed() const { return closed_; }
  /// Receives what there is; returns whether something moved. Throws kPeerLost when the connection
  /// breaks, ends inside a frame, or brings a corrupt one.
  bool TryRecv(FrameSink& sink);

 private:
  bool Consume(FrameSink& sink);
  std::size_t Buffered() const { return end_ - begin_; }

  UniqueFd socket_;
  std::string peer_;
  // Headers and the beginnings of payloads. Small, so that long payloads go straight to their
  // place.
  std::array<std::byte, net::kFrameHeaderBytes + 2048> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::optional<net::FrameHeader> header_;  // of the frame that is arriving
  bool placed_ = false;
  bool closed_ = false;
  Bytes payload_;
  std::size_t received_ = 0;
};

}  // namespace orca::comm
