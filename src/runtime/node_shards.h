// The shards of a node, and who holds them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "orca/data/shard_home.h"
#include "runtime/link.h"

namespace orca::runtime {

/// The upper bits of a shard's number are the node that owns it.
inline constexpr int kNodeShift = 48;
inline constexpr int kDriverNode = 0x7fff;  ///< A driver that has no agent beside it.
inline int NodeOf(std::uint64_t shard) { return static_cast<int>(shard >> kNodeShift); }
inline std::uint64_t FirstId(int node) { return static_cast<std::uint64_t>(node) << kNodeShift; }

/// Numbers of shards, of which there may be too many for the words of a message.
Parcel PackNumbers(std::span<const std::uint64_t> shards);
std::vector<std::uint64_t> UnpackNumbers(const Parcel& parcel);

/// An agent's shards. Owns their memory; knows which worker holds what, so that nothing is left of
/// one that dies. A shard of another node is fetched through the driver when it is first opened,
/// and kept until the driver says that nobody needs it.
class NodeShards {
 public:
  using Holder = std::uint64_t;  ///< A worker's number, kDriver, a guest's or a basket's.
  static constexpr Holder kDriver = 0;
  static constexpr Holder kFirstGuest = Holder{1} << 62;
  static constexpr Holder kFirstBasket = Holder{1} << 63;

  /// `send` takes a message to a worker or to the driver, unless it is gone.
  explicit NodeShards(std::function<void(Holder, Message)> send);

  /// The node's number, and how much memory its shards may take (0: half of what is free).
  void Settle(int node, std::size_t limit);
  /// Does what `message` of `from` says, if it is about shards; otherwise says false.
  bool Handle(Holder from, Message& message);
  /// The driver holds the shards that a result names.
  void HoldResults(const Message& message);
  /// `holder` holds these shards once more.
  void DropFor(Holder holder, std::uint64_t id, data::Reuse reuse);
  void HoldFor(Holder holder, const std::vector<std::uint64_t>& shards);
  void HolderGone(Holder holder);
  /// Bytes of memory that all shards take.
  std::size_t held() const { return shelf_->usage().held; }
  /// Gives memory back that has not been used for a while.
  void GiveBack();

 private:
  struct Opening {
    Holder holder = kDriver;
    std::uint64_t ticket = 0;
  };

  void New(Holder from, const Json& head);
  void Open(Holder from, const Json& head);
  void Answer(Holder to, std::uint64_t ticket, data::ShardMemory memory, bool is_new);
  void Refuse(Holder to, std::uint64_t ticket, int code, const std::string& why);
  void OpenBasket(const Json& head);
  void Deposit(Holder from, const Message& message);
  void Collect(const Message& message);
  void Fetch(const Json& head);
  void TakeBytes(Message& message);
  bool IsMine(std::uint64_t id) const { return NodeOf(id) == node_; }

  std::function<void(Holder, Message)> send_;
  int node_ = 0;
  std::shared_ptr<data::ShardShelf> shelf_;
  std::map<Holder, std::map<std::uint64_t, int>> holds_;  // by shard
  std::set<Holder> baskets_;                              // that the driver waits for
  Holder last_basket_ = kFirstBasket;
  std::set<std::uint64_t> forgotten_;  // nobody needs them any more, and they are on their way
  std::map<std::uint64_t, std::vector<Opening>> on_their_way_;  // who waits for a shard
};

}  // namespace orca::runtime
