// Send and receive between two ranks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/failure.h"
#include "comm/frame_io.h"
#include "comm/work.h"
#include "orca/core/deadline.h"
#include "orca/core/unique_fd.h"

namespace orca::comm {

struct MessengerOptions {
  int rank = 0;
  std::vector<std::string> names;
  std::chrono::nanoseconds spin{};
  std::chrono::milliseconds grace{};  ///< See FirstCause.
  /// Connects to `peer`; messages to it go over this connection, in one direction.
  std::function<UniqueFd(int peer, const Deadline& deadline)> connect;
  std::function<std::optional<Failure>()> failure;
  /// Called when a message cannot be delivered: the group ends.
  std::function<void(const Failure&)> on_failure;
};

/// Messages match by peer and tag, in the order in which they were sent. A message that nobody
/// waits for stays with its sender, unless the receiver waits for another one behind it: then it is
/// put aside.
///
/// Blocking calls move data on the caller's thread; a thread of its own does it while asynchronous
/// calls are pending. Any thread may call it.
class Messenger {
 public:
  explicit Messenger(MessengerOptions options);
  ~Messenger();

  /// A peer has connected to us. Does not wait, not even for a thread that dials a peer.
  void AddLink(int peer, UniqueFd socket);
  /// A peer sends no more: who waits for a message of it that does not come soon fails.
  void NotePeerReturned(int peer);
  void ForgetReturned();
  /// Wakes waiting threads, so that they look for a failure.
  void Wake();

  std::shared_ptr<Work::State> StartSend(ConstBytes data, int peer, std::uint64_t tag,
                                         const Deadline& deadline, DoneCallback done);
  std::shared_ptr<Work::State> StartRecv(Bytes data, int peer, std::uint64_t tag,
                                         const Deadline& deadline, DoneCallback done);
  /// Moves data on this thread until `work` has ended.
  void Drive(const Work::State& work);
  /// Has the messenger's own thread move data.
  void DriveInBackground();
  /// Starts the thread that DriveInBackground needs. Throws kResourceExhausted.
  void EnsureThread();

 private:
  struct Request {
    std::shared_ptr<Work::State> work;
    int peer = -1;
    std::uint64_t tag = 0;
    Deadline deadline;
    Deadline::Clock::time_point since;
    ConstBytes send;
    std::size_t begun = 0;  // bytes of `send` given to the writer
    Bytes recv;
  };
  struct Unexpected {
    int peer = -1;
    std::uint64_t tag = 0;
    std::vector<std::byte> data;
    bool complete = false;
  };
  struct Outbox {
    std::optional<FrameWriter> writer;
    std::deque<Request> requests;
    bool sending = false;     // the front request has begun
    bool connecting = false;  // some thread is making the writer
  };
  class Inbox;
  using Finished =
      std::vector<std::pair<std::shared_ptr<Work::State>, std::pair<std::exception_ptr, int>>>;

  void ConnectOutboxes();
  void AdoptLinks();
  bool ProgressLocked(Finished& finished);
  bool ProgressOutbox(Outbox& outbox, Finished& finished);
  void FailAll(const Failure& failure, Finished& finished);
  void CheckDeadlines(Finished& finished);
  bool WaitsInVain(const Request& request) const;
  /// One round; returns whether data moved.
  bool Round();
  void Sleep(std::chrono::milliseconds limit);
  bool IdleLocked() const;
  void Loop(const std::stop_token& stop);

  MessengerOptions options_;
  UniqueFd wake_;

  std::mutex mutex_;  // guards all below
  std::condition_variable_any posted_;
  std::map<int, Outbox> outboxes_;
  std::map<int, std::unique_ptr<Inbox>> inboxes_;
  std::map<int, std::string> closed_;  // peers whose connection has ended, and how
  std::map<int, Deadline> returned_;   // peers, and until when what they sent may arrive
  std::list<Request> recvs_;           // posted, not yet matched
  std::list<Unexpected> unexpected_;
  bool background_ = false;

  std::mutex arrived_mutex_;  // never held for long: the monitor's thread takes it
  std::vector<std::pair<int, UniqueFd>> arrived_;  // guarded by arrived_mutex_

  std::jthread thread_;
};

}  // namespace orca::comm
