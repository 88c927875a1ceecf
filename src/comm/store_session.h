// One client of a TCP store, seen from the server.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/store_map.h"
#include "comm/store_protocol.h"
#include "orca/core/deadline.h"
#include "orca/core/unique_fd.h"
#include "orca/net/channel.h"

namespace orca::comm {

/// An authenticated connection as a state machine that never blocks, with one request at a time: it
/// reads nothing while a reply is on its way or a get waits, so a client cannot make the server
/// hold more than a message each way. Used by the server's thread only; borrows the map.
class StoreSession {
 public:
  StoreSession(UniqueFd fd, const net::SessionKeys& keys, StoreMap& map);

  int fd() const { return fd_.get(); }
  /// What to poll for.
  short events() const;
  /// When Advance must be called though nothing arrived; empty: never.
  std::optional<Deadline> wake_at() const { return deadline_; }
  /// Whether the session has to be destroyed.
  bool over() const { return phase_ == Phase::kOver; }

  /// Does what can be done now; `revents` is what poll reported, 0 when a deadline or the map made
  /// it worth a look. Throws when the client broke the rules; the session is over then.
  void Advance(short revents);

 private:
  enum class Phase {
    kServing,
    kWaiting,  // A get waits for its key.
    kOver,
  };

  void Read();
  void TakeRequests();
  void Handle(StoreRequest request);
  void CheckWaiting();
  void Reply(const StoreReply& reply);
  void Flush();

  UniqueFd fd_;
  StoreMap& map_;
  Phase phase_ = Phase::kServing;
  net::SealedChannel channel_;
  std::string awaited_;               // The key that a get waits for ...
  std::optional<Deadline> deadline_;  // ... and until when.
  std::vector<std::byte> output_;
  std::size_t sent_ = 0;  // So much of output_ is gone.
};

}  // namespace orca::comm
