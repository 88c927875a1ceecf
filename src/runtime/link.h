// Messages between the processes of a job.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "orca/core/unique_fd.h"
#include "orca/net/channel.h"
#include "orca/runtime/parcel.h"

namespace orca::runtime {

using Json = nlohmann::json;

/// What one process tells another: some words (MessagePack on the way), bytes that go with them,
/// and, on one host, descriptors.
struct Message {
  Json head = Json::object();
  Parcel parcel = {};
  std::vector<UniqueFd> fds = {};
  std::shared_ptr<void> keep = {};  ///< What must live until the message is sent.
};

/// One end of a connection, driven by a Loop: no call blocks. Messages arrive whole and in order.
/// Not thread-safe.
class Link {
 public:
  virtual ~Link() = default;

  /// Queues `message` and sends what can be sent. A broken link takes it and drops it: Receive
  /// tells.
  virtual void Send(Message message) = 0;
  /// Goes on sending. Call it when the descriptor can be written.
  virtual void Flush() = 0;
  /// The next message, if there is a whole one. Throws kPeerLost when the other end is gone.
  virtual std::optional<Message> Receive() = 0;
  virtual bool wants_write() const = 0;
  /// Bytes that wait to be sent.
  virtual std::size_t queued() const = 0;
  virtual int fd() const = 0;
};

/// Over a Unix socket (SOCK_SEQPACKET): between processes that inherited its two ends.
class UnixLink final : public Link {
 public:
  explicit UnixLink(UniqueFd socket) : socket_(std::move(socket)) {}
  /// Both ends of a new connection.
  static std::pair<UniqueFd, UniqueFd> Pair();

  void Send(Message message) override;
  void Flush() override;
  std::optional<Message> Receive() override;
  bool wants_write() const override { return !queue_.empty(); }
  std::size_t queued() const override { return queued_; }
  int fd() const override { return socket_.get(); }

 private:
  struct Packet {
    std::vector<std::byte> bytes;
    Parcel parcel;  // keeps the descriptor of a long one
    std::vector<UniqueFd> fds;
  };
  bool TrySend(const Packet& packet);

  UniqueFd socket_;
  std::deque<Packet> queue_;
  std::size_t queued_ = 0;
  std::vector<std::byte> buffer_;
};

/// Over TCP, after a handshake: between an agent and a driver on another host. Every frame is
/// sealed; a long parcel goes in pieces. Descriptors cannot travel.
class TcpLink final : public Link {
 public:
  TcpLink(UniqueFd socket, const net::SessionKeys& keys, net::SealedChannel::Side side);

  void Send(Message message) override;
  void Flush() override;
  std::optional<Message> Receive() override;
  bool wants_write() const override { return !unsent_.empty() || !queue_.empty(); }
  std::size_t queued() const override { return queued_; }
  int fd() const override { return socket_.get(); }

 private:
  struct Outgoing {
    std::vector<std::byte> head;
    Parcel parcel;
    std::size_t sent = 0;  // bytes of the parcel
    std::shared_ptr<void> keep = {};
  };
  void SealNext();
  std::optional<Message> Take(std::span<const std::byte> frame);
  void MakeRoom(std::size_t size);

  UniqueFd socket_;
  net::SealedChannel channel_;
  std::deque<Outgoing> queue_;
  std::size_t queued_ = 0;
  std::vector<std::byte> unsent_;  // of the frame that is being sent
  std::size_t unsent_begin_ = 0;
  bool broken_ = false;
  // The message that is arriving.
  Json head_;
  std::optional<Parcel::Builder> parcel_;
  std::size_t skipped_ = 0;  // bytes of a parcel that there is no memory for
};

/// Cuts the middle out of a text that is too long for a message.
std::string Shortened(const std::string& text, std::size_t limit = std::size_t{32} << 10);

}  // namespace orca::runtime
