// Watches over a group: takes connections, keeps heartbeats, spreads the first failure.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/failure.h"
#include "orca/core/deadline.h"
#include "orca/core/unique_fd.h"
#include "orca/net/acceptor.h"
#include "orca/net/channel.h"

namespace orca::comm {

/// What a connection is for; part of its Hello.
enum class Role : std::uint32_t { kControl = 1, kData = 2, kMessages = 3, kSegment = 4 };

struct MonitorOptions {
  int rank = 0;
  int world = 1;
  std::vector<std::string> names;
  net::Secret secret;
  std::array<std::uint8_t, 16> job{};
  std::uint64_t generation = 0;
  std::chrono::milliseconds peer_timeout{};
  /// Called about ten times in peer_timeout, on the monitor's thread.
  std::function<void()> heartbeat;
  /// Called when a rank has left, on the monitor's thread.
  std::function<void()> on_left;
  /// Called at the first failure, on any thread.
  std::function<void(const Failure&)> on_failure;
  /// Receives authenticated connections other than kControl, on the monitor's thread.
  std::function<void(net::Acceptor::Connection)> on_connection;
};

/// One thread a group, unless it is of one rank. Every rank keeps a control connection to rank 0;
/// rank 0 sees who dies (the connection closes) or falls silent (no heartbeat), and tells all the
/// others. A rank that loses rank 0 gives up by itself.
///
/// Any thread may call it.
class Monitor {
 public:
  explicit Monitor(MonitorOptions options);
  ~Monitor();

  /// Takes connections from `listener` (net::ListenTcp, net::ListenUnix). Before Start.
  void Listen(UniqueFd listener, bool local) { acceptor_.Listen(std::move(listener), local); }
  /// Begins to serve; on other ranks than 0, `hub` is an authenticated connection to rank 0.
  void Start();
  void ConnectHub(UniqueFd socket, const net::SessionKeys& keys);
  /// Waits until all ranks are connected; throws kTimeout naming the missing ones.
  void WaitUntilReady(const Deadline& deadline, const std::function<bool()>& cancelled);

  /// Ends the group on all ranks. The first failure wins.
  void Fail(const Failure& failure);
  /// Whether a rank said that it goes. Rank 0 passes it on; when rank 0 itself has gone, nobody
  /// does.
  bool HasLeft(int rank) const {
    return left_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire);
  }
  /// Tells the others that this rank goes, and stops the thread. The destructor does it, too.
  void Leave();

 private:
  enum class Type : std::uint8_t { kBeat = 1, kReady = 2, kLeft = 3, kFailed = 4 };
  struct Link {
    UniqueFd socket;
    net::SealedChannel channel;
    std::vector<std::byte> unsent;
    Deadline::Clock::time_point heard;
    bool left = false;
  };

  void Loop(const std::stop_token& stop);
  void TakeConnection(net::Acceptor::Connection connection);
  void AddLink(int rank, UniqueFd socket, net::SealedChannel channel);
  void Read(int rank, Link& link);
  void HandleMessage(int rank, Link& link, std::span<const std::byte> message);
  void Beat();
  void Queue(Link& link, Type type, const Failure& failure = {});
  void FlushLinks();
  void LoseLink(int rank, Link& link, const std::string& why);
  void NoteLeft(int rank);
  void FailLocked(const Failure& failure, int from);
  void Wake();

  MonitorOptions options_;
  net::Acceptor acceptor_;
  UniqueFd wake_;
  std::vector<std::atomic<bool>> left_;  // one a rank

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::map<int, Link> links_;
  bool ready_ = false;
  bool failed_ = false;
  Failure failure_;

  std::jthread thread_;
};

}  // namespace orca::comm
