#include "runtime/agent_home.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "orca/core/deadline.h"
#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/log.h"

namespace orca::runtime {
namespace {

constexpr std::chrono::milliseconds kLook(50);
// A shard of another node has to come over the network.
constexpr std::chrono::minutes kLongest(10);

}  // namespace

AgentHome::AgentHome(std::function<void(Message)> send, std::function<bool()> cancelled)
    : cancelled_(std::move(cancelled)), forks_(ForkCount()), send_(std::move(send)) {}

data::ShardMemory AgentHome::New(std::size_t bytes, data::Backing backing) {
  return AskForMemory(
      {{"op", "new"}, {"bytes", bytes}, {"in_memory", backing == data::Backing::kMemory}});
}

data::ShardMemory AgentHome::Open(std::uint64_t id) {
  return AskForMemory({{"op", "open"}, {"id", id}});
}

data::ShardMemory AgentHome::OpenToWrite(std::uint64_t id) {
  return AskForMemory({{"op", "open"}, {"id", id}, {"write", true}});
}

void AgentHome::Hold(std::uint64_t id) noexcept { Tell("hold", id, data::Reuse::kYes); }
void AgentHome::Drop(std::uint64_t id, data::Reuse reuse) noexcept { Tell("drop", id, reuse); }

void AgentHome::Tell(const char* op, std::uint64_t id, data::Reuse reuse) noexcept {
  if (ForkCount() != forks_) return;
  try {
    const std::shared_lock gate(gate_);
    if (send_) send_({.head = {{"op", op}, {"id", id}, {"reuse", reuse == data::Reuse::kYes}}});
  } catch (const std::exception& error) {
    Log(LogLevel::kWarning,
        fmt::format("the agent was not told to {} a shard: {}", op, error.what()));
  }
}

data::ShardMemory AgentHome::AskForMemory(Json request) {
  Message answer = Ask({.head = std::move(request)}, kLongest);
  if (answer.fds.empty()) throw Error(Code::kPeerLost, "the agent sent no memory");
  return {.id = answer.head.at("id").get<std::uint64_t>(),
          .fd = std::move(answer.fds.front()),
          .size = answer.head.at("size").get<std::size_t>()};
}

Json AgentHome::AskForWords(Json request, Parcel parcel) {
  return Ask({.head = std::move(request), .parcel = std::move(parcel)}, kLongest).head;
}

Message AgentHome::Ask(Message request, std::chrono::milliseconds longest) {
  if (ForkCount() != forks_) {
    throw Error(Code::kFailedPrecondition,
                "this process was forked, and shards are its parent's to put and open; do that "
                "there");
  }
  std::uint64_t ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    ticket = ++last_ticket_;
    answers_[ticket] = std::nullopt;
  }
  request.head["ticket"] = ticket;
  {
    const std::shared_lock gate(gate_);
    if (send_) send_(std::move(request));
  }
  const Deadline deadline = Deadline::After(longest);
  std::unique_lock lock(mutex_);
  while (!answers_[ticket] && failed_.empty() && !deadline.Passed() && !cancelled_())
    answered_.wait_for(lock, kLook);
  std::optional<Message> answer = std::move(answers_[ticket]);
  answers_.erase(ticket);
  if (!answer) {
    if (!failed_.empty()) throw Error(Code::kUnavailable, failed_);
    if (cancelled_()) throw Error(Code::kAborted, "the call was cancelled");
    throw Error(Code::kTimeout,
                fmt::format("the agent gave no answer within {} minutes",
                            std::chrono::duration_cast<std::chrono::minutes>(longest).count()));
  }
  if (const auto why = answer->head.find("error"); why != answer->head.end())
    throw Error(static_cast<Code>(answer->head.at("code").get<int>()), why->get<std::string>());
  return std::move(*answer);
}

void AgentHome::Hear(Message message) {
  std::unique_lock lock(mutex_);
  const auto found = answers_.find(message.head.at("ticket").get<std::uint64_t>());
  if (found != answers_.end()) {
    found->second = std::move(message);
    answered_.notify_all();
    return;
  }
  lock.unlock();
  // Whoever asked has given up; nobody else knows of the new shard.
  if (message.head.value("new", false)) Drop(message.head.at("id").get<std::uint64_t>());
}

void AgentHome::Fail(const std::string& why) {
  const std::lock_guard lock(mutex_);
  failed_ = why;
  answered_.notify_all();
}

void AgentHome::Close(const std::string& why) {
  Fail(why);
  const std::unique_lock gate(gate_);
  send_ = nullptr;
}

}  // namespace orca::runtime
