// Messages between ranks of different hosts, for collectives.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/call_record.h"
#include "comm/failure.h"
#include "comm/frame_io.h"
#include "orca/core/deadline.h"
#include "orca/core/unique_fd.h"

namespace orca::comm {

struct MeshOptions {
  int rank = 0;
  std::vector<std::string> names;  ///< "rank 3 (host a, pid 12)", one a rank of the group.
  int streams = 1;                 ///< Connections to each peer; they share the work.
  std::chrono::nanoseconds spin{};
  std::chrono::milliseconds warn_after{};
  LongWaitReport on_long_wait;
  std::chrono::milliseconds grace{};  ///< See FirstCause.
  /// Connects stream `stream` to `peer`.
  std::function<UniqueFd(int peer, int stream, const Deadline& deadline)> connect;
  std::function<std::optional<Failure>()> failure;
  /// Whether a rank has said that it goes.
  std::function<bool(int peer)> left;
};

/// Moves messages over TCP. Messages from one rank to another are taken in the order in which they
/// were posted, and every one says which collective it belongs to: the receiver compares that with
/// its own call.
///
/// A message is cut into pieces; whichever stream has room takes the next one, so a slow stream
/// does not hold up the others. Connections are made when they are first needed; each carries one
/// direction.
///
/// One thread runs collectives; AddStream may be called from another.
class Mesh {
 public:
  explicit Mesh(MeshOptions options);
  ~Mesh();

  /// A peer has connected a stream to us. Any thread.
  void AddStream(int peer, UniqueFd socket);
  /// Wakes a waiting thread, so that it looks for a failure. Any thread.
  void Wake();

  /// All messages up to the next Begin belong to this call.
  void Begin(std::uint64_t sequence, const CallRecord& record, const Deadline& deadline);
  /// Queues a message. `data` is borrowed until Flush returns.
  void Send(int peer, ConstBytes data);
  /// Expects a message of exactly this size; returns its number for Wait.
  std::uint64_t Recv(int peer, Bytes data);
  /// Moves data both ways until that message has arrived.
  void Wait(int peer, std::uint64_t number);
  /// Moves data until everything that was posted is sent and received.
  void Flush();
  /// For how long calls of this rank have slept, waiting for others. Any thread.
  std::chrono::nanoseconds slept() const { return slept_.load(); }

 private:
  class Peer;

  Peer& peer(int rank);
  void AdoptStreams();
  bool Progress();
  template <typename Done>
  void ProgressUntil(Done done);
  void Sleep(std::chrono::milliseconds limit);
  void CheckForTrouble(Deadline::Clock::time_point since, int* warnings);
  std::string DescribeWait(Deadline::Clock::time_point since) const;

  MeshOptions options_;
  std::map<int, std::unique_ptr<Peer>> peers_;
  UniqueFd wake_;
  SleepTime slept_;

  // The collective under way.
  std::uint64_t sequence_ = 0;
  CallRecord record_;
  Deadline deadline_ = Deadline::After(std::chrono::milliseconds(0));

  std::mutex mutex_;
  std::vector<std::pair<int, UniqueFd>> arrived_;  // guarded by mutex_
  std::atomic<bool> any_arrived_{false};
};

}  // namespace orca::comm
