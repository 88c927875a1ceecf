// The ranks of one host, meeting in shared memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/call_record.h"
#include "comm/failure.h"
#include "orca/comm/communicator.h"
#include "orca/core/deadline.h"
#include "orca/core/shared_memory.h"

namespace orca::comm {

/// How the ranks of a host wait for each other.
struct LocalGroupOptions {
  int index = 0;  ///< This rank's place among the ranks of the host.
  int size = 1;
  std::vector<std::string> names;  ///< "rank 3 (host a, pid 12)", for messages.
  std::chrono::nanoseconds
      spin{};  ///< How long to spin before sleeping; 0 when ranks outnumber cores.
  std::chrono::milliseconds peer_timeout{};
  std::chrono::milliseconds warn_after{};
  LongWaitReport on_long_wait;
  /// Maps segment `segment` of the arena of local rank `peer`.
  std::function<SharedMemory(int peer, std::uint32_t segment)> map_segment;
};

/// Shared memory of one group on one host: who is where, small payloads, staging buffers, and the
/// abort record.
///
/// Every collective begins with Arrive, a barrier in which all ranks compare their calls. Inside a
/// collective the ranks go on in phases that end with Sync. So whoever returns from Arrive of call
/// n knows that everybody has finished call n-1, and may overwrite what that call used.
///
/// One thread runs collectives; Heartbeat, Abort and failure() may be called from any other.
class LocalGroup {
 public:
  static constexpr std::size_t kInlineBytes = 4096;  ///< Payload that can ride on Arrive.
  static constexpr std::size_t kTinyBytes =
      256;  ///< Payload that should, even if it is registered.
  static constexpr int kStagingBuffers = 3;

  /// Size of the segment for `size` ranks.
  static std::size_t SegmentBytes(int size);
  /// Initialises a fresh segment, before it is handed to the peers.
  static void Format(SharedMemory& memory, int size);

  LocalGroup(SharedMemory memory, LocalGroupOptions options);
  ~LocalGroup();

  int index() const { return options_.index; }
  int size() const { return options_.size; }

  /// Enters collective `sequence`, with up to kInlineBytes for the peers to read, and waits for all
  /// of them. Throws kMismatch when their calls differ. `timeout` is for the whole collective.
  void Arrive(std::uint64_t sequence, const CallRecord& record, std::span<const ConstBytes> payload,
              std::chrono::milliseconds timeout);
  /// Whether all others have entered collective `sequence`, the one that this rank enters next.
  bool PeersArrived(std::uint64_t sequence) const;
  /// What a peer said, and the payload it brought, in the current collective.
  const CallRecord& record(int peer) const;
  bool registered(int peer) const;  ///< As in its record, but quicker.
  const std::byte* payload(int peer) const;
  /// Waits until every rank has called Sync as often as this one.
  void Sync();

  /// Counts from 0 over all ranks, for work that whoever is free takes next.
  std::uint64_t TakeTicket();
  /// Starts at 0 again for the next call; every rank calls it after the Sync behind its last
  /// ticket.
  void ResetTickets();

  /// Memory of `peer` for pieces of foreign arrays, visible to all; 64-byte aligned.
  std::byte* staging(int peer, std::size_t buffer) const;
  std::size_t staging_bytes() const { return staging_bytes_; }
  /// Where the registered buffer that `peer` named in its record lies in this process.
  std::byte* PeerBuffer(int peer);
  /// The same for all ranks, moved by `offset`; `own` is this rank's buffer. Valid until the next
  /// call.
  std::span<std::byte* const> PeerBuffers(std::byte* own, std::size_t offset);
  /// Whether all ranks named registered memory in their records.
  bool AllRegistered() const;

  /// Says that this rank lives; called by the monitor.
  void Heartbeat();
  /// Ends every wait of every local rank. The first failure stays.
  void Abort(const Failure& failure);
  /// The failure that ended the group, if any.
  std::optional<Failure> failure() const;
  /// For how long calls of this rank have slept, waiting for others. Any thread.
  std::chrono::nanoseconds slept() const { return slept_.load(); }
  /// Says that this rank will not enter another collective.
  void Leave();

 private:
  struct Header;
  struct Slot;

  Slot& slot(int peer) const;
  bool Arrived(int peer, std::uint64_t sequence) const;
  bool Synced(int peer) const;
  template <typename Reached>
  void Wait(Reached reached);
  template <typename Reached>
  bool Spin(Reached reached) const;
  void WaitAsleep(const std::function<bool(int)>& reached);
  void CheckForTrouble(const std::function<bool(int)>& reached, Deadline::Clock::time_point since,
                       int* warnings);
  std::string DescribeWait(int peer, Deadline::Clock::time_point since) const;
  void CheckRecords(std::uint64_t mine) const;
  void Ring();

  SharedMemory memory_;
  LocalGroupOptions options_;
  Header* header_ = nullptr;
  std::size_t staging_bytes_ = 0;
  std::vector<std::vector<std::shared_ptr<SharedMemory>>>
      segments_;  // of the peers' arenas, mapped when first used

  std::vector<std::byte*> buffers_;  // what PeerBuffers returns
  SleepTime slept_;

  // The collective under way.
  std::uint64_t sequence_ = 0;
  std::uint64_t phase_ = 0;
  std::chrono::milliseconds timeout_{0};
  std::optional<Deadline> deadline_;  // set when a wait turns out long: most need no clock
};

}  // namespace orca::comm
