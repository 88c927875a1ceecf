// A process that is not of the job and works with its shards: a task of Spark, for example.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "orca/core/export.h"
#include "orca/data/shard_home.h"
#include "orca/runtime/parcel.h"

namespace orca::runtime {

/// Where guests of a job come in, on the machine of its agent.
struct Door {
  std::string name;         ///< Of an abstract Unix socket.
  std::string secret_file;  ///< What a guest must know; only this user can read it.
};

/// What a guest asks the driver. Whoever asks waits for Context::Answer.
struct Question {
  std::uint64_t guest = 0;
  std::uint64_t ticket = 0;
  Parcel parcel;
};

/// What the driver says.
struct Reply {
  Parcel parcel;
  std::vector<std::shared_ptr<const data::ShardHold>> shards;  ///< That the parcel names.
};

/// Puts and opens shards of a job's node. What it has put goes with it, unless it was left in a
/// basket (see Context::NewBasket). Any thread may use it; a forked child may not.
class ORCA_API Guest {
 public:
  /// Throws kUnavailable when the job has ended.
  static std::unique_ptr<Guest> Join(const Door& door, std::chrono::milliseconds timeout);
  ~Guest();

  const std::shared_ptr<data::ShardHome>& shards() const;
  /// Leaves shards that it holds for the driver. Returns when they are safe there. Throws
  /// kFailedPrecondition when nobody waits for them any more.
  void Leave(std::uint64_t basket, std::span<const std::uint64_t> shards);
  /// Asks the driver (see Context::NextQuestion) and waits. The question may name shards that the
  /// guest holds meanwhile. Throws kUnavailable when the context ends before the answer.
  Reply Ask(Parcel question);

 private:
  struct State;
  explicit Guest(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace orca::runtime
