// The shards of a node, seen by a process that talks to its agent.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>

#include "orca/data/shard_home.h"
#include "runtime/link.h"

namespace orca::runtime {

/// Asks an agent (see NodeShards) for memory. In a forked child it can do nothing: the link is its
/// parent's.
class AgentHome final : public data::ShardHome {
 public:
  /// `send` takes a message to the agent, from any thread and without waiting; `cancelled` says
  /// when whoever waits should give up.
  AgentHome(std::function<void(Message)> send, std::function<bool()> cancelled);

  data::ShardMemory New(std::size_t bytes, data::Backing backing = data::Backing::kAny) override;
  void Hold(std::uint64_t id) noexcept override;
  void Drop(std::uint64_t id, data::Reuse reuse = data::Reuse::kYes) noexcept override;
  data::ShardMemory Open(std::uint64_t id) override;
  data::ShardMemory OpenToWrite(std::uint64_t id) override;

  /// Asks for something other than memory, and waits for what the agent says.
  Json AskForWords(Json request, Parcel parcel = {});
  /// Sends a request with a ticket, and waits for the answer. Throws what the agent refuses with.
  Message Ask(Message request, std::chrono::milliseconds longest);

  /// An answer ("granted") of the agent.
  void Hear(Message message);
  /// No answer will come any more: whoever waits is told why.
  void Fail(const std::string& why);
  /// As Fail; and nothing is sent any more.
  void Close(const std::string& why);

 private:
  void Tell(const char* op, std::uint64_t id, data::Reuse reuse) noexcept;
  data::ShardMemory AskForMemory(Json request);

  const std::function<bool()> cancelled_;
  const std::uint64_t forks_;
  std::shared_mutex gate_;  // guards send_; held while it is called
  std::function<void(Message)> send_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable answered_;
  std::map<std::uint64_t, std::optional<Message>> answers_;  // by ticket
  std::uint64_t last_ticket_ = 0;
  std::string failed_;
};

}  // namespace orca::runtime
