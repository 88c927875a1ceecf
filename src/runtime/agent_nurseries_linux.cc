// Agent: the nurseries, their spares, and how workers are born.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/log.h"
#include "orca/core/mutant.h"
#include "runtime/agent.h"
#include "runtime/link.h"
#include "runtime/process.h"

namespace orca::runtime {
namespace {

constexpr int kNurseryTries = 3;
constexpr int kSpareTries = 3;
constexpr std::uint64_t kSpare = 0;                   // in the place of a worker's number
constexpr std::chrono::seconds kNurseryTimeout(300);  // to import a framework from a cold disk
constexpr std::chrono::seconds kNurseryLeave(10);     // to end, once its link is closed

std::pair<UniqueFd, UniqueFd> MakePipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw Error(Code::kResourceExhausted,
                fmt::format("cannot make a pipe: {}", DescribeLimitError(errno)));
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace

void Agent::StartNursery(Nursery& nursery) {
  try {
    LaunchNursery(nursery);
  } catch (const Error& error) {  // A limit of this machine is no reason to end this process.
    GiveUp(nursery, error.what());
  }
}

void Agent::LaunchNursery(Nursery& nursery) {
  auto [mine, theirs] = UnixLink::Pair();
  auto [output, output_end] = MakePipe();
  auto [errors, errors_end] = MakePipe();
  Program program = nursery.program;
  program.environment["ORCA_NURSERY"] = "3";
  // Another machine may keep its interpreter elsewhere; it has started this agent with the path.
  if (const char* python = std::getenv("ORCA_PYTHON");
      python != nullptr && nursery.kind.starts_with("python"))
    program.command.at(0) = python;
  nursery.pid = StartBound(program, theirs, output_end, errors_end);
  nursery.ready = false;
  nursery.moving = false;
  nursery.spares = 0;
  loop_.At(Clock::now() + kNurseryTimeout, [this, kind = nursery.kind, pid = nursery.pid] {
    const auto found = nurseries_.find(kind);
    if (found != nurseries_.end() && found->second.pid == pid && !found->second.ready)
      ::kill(pid, SIGKILL);
  });
  nursery.link = std::make_unique<UnixLink>(std::move(mine));
  nursery.pipes[0].fd = std::move(output);
  nursery.pipes[1].fd = std::move(errors);
  const std::string kind = nursery.kind;
  WatchLink(*nursery.link, [this, kind] { HandleNursery(kind); });
  for (int stream = 0; stream < 2; ++stream)
    WatchPipe(
        nursery.pipes[stream], stream, [] { return nullptr; }, kind);
  BearOwed(nursery);
}

void Agent::WatchLink(UnixLink& link, std::function<void()> handle) {
  UnixLink* const watched = &link;
  loop_.Watch(
      link.fd(),
      [watched] { return static_cast<short>(watched->wants_write() ? POLLIN | POLLOUT : POLLIN); },
      [handle = std::move(handle)](short) { handle(); });
}

// The workers that the process before it was asked for.
void Agent::BearOwed(Nursery& nursery) {
  std::erase_if(nursery.unborn, [this](std::uint64_t id) { return !workers_.contains(id); });
  for (const std::uint64_t id : std::vector(nursery.unborn)) AskForWorker(nursery, workers_.at(id));
}

void Agent::HandleNursery(const std::string& kind) {
  Nursery& nursery = nurseries_.at(kind);
  try {
    nursery.link->Flush();
    while (auto message = nursery.link->Receive()) {
      const std::string op = message->head.value("op", "");
      if (op == "ready") {
        nursery.ready = true;
        for (const std::uint64_t id : nursery.unborn)
          if (const auto found = workers_.find(id); found != workers_.end())
            found->second.heard = Clock::now();
        driver_->Send({.head = {{"op", "nursery"},
                                {"kind", kind},
                                {"threads", message->head.at("threads")},
                                {"versions", message->head.at("versions")}}});
        KeepSpare(nursery);
      } else if (op == "forked") {
        const auto id = message->head.at("worker").get<std::uint64_t>();
        if (id == kSpare) continue;  // It says so itself.
        std::erase(nursery.unborn, id);
        nursery.failures = 0;
        const auto found = workers_.find(id);
        if (found == workers_.end()) continue;
        Worker& worker = found->second;
        worker.pid = message->head.at("pid").get<pid_t>();
        worker.heard = Clock::now();
        driver_->Send({.head = {{"op", "started"}, {"worker", id}, {"pid", worker.pid}}});
        if (!worker.fate.empty()) ::kill(-worker.pid, SIGKILL);
        nursery.spares = 0;
        KeepSpare(nursery);
      } else if (op == "cannot fork") {
        const auto id = message->head.at("worker").get<std::uint64_t>();
        if (id == kSpare) {
          DropSpare(nursery);
          continue;
        }
        std::erase(nursery.unborn, id);
        nursery.failures = 0;
        WorkerDied(id, "was not born: " + message->head.at("why").get<std::string>());
      } else if (op == "moving" || op == "moved") {
        // A spare would keep the pages that the nursery leaves.
        nursery.moving = op == "moving";
        if (nursery.moving) DropSpare(nursery);
        nursery.spares = 0;
        KeepSpare(nursery);
      } else if (op == "exited") {
        HandleExit(message->head.at("pid").get<pid_t>(), message->head.at("status").get<int>(),
                   message->head.at("peak").get<std::size_t>());
      }
    }
  } catch (const Error& error) {
    if (error.code() != Code::kPeerLost) throw;
    loop_.Forget(nursery.link->fd());  // Reap says how it ended
    loop_.At(Clock::now() + kNurseryLeave, [this, kind, pid = nursery.pid] {
      const auto found = nurseries_.find(kind);
      if (found != nurseries_.end() && found->second.pid == pid) ::kill(pid, SIGKILL);
    });
  }
}

// Its workers live on, as children of this process. It starts again, unless it cannot even begin,
// or dies again and again before it has forked the next worker.
void Agent::NurseryDied(Nursery& nursery, int status) {
  nursery.pid = -1;
  // First what both said before: a worker that was forked is not forked again, and a spare that has
  // died takes no place.
  HandleNursery(nursery.kind);
  if (nursery.spare) HandleSpare(nursery.kind);
  loop_.Forget(nursery.link->fd());
  const bool was_ready = std::exchange(nursery.ready, false);
  const bool owed =
      !was_ready || !nursery.unborn.empty() || (nursery.spares > 0 && nursery.spare_pid < 0);
  nursery.failures = owed ? nursery.failures + 1 : 0;
  const bool again = !stopping_ && (nursery.failures < kNurseryTries || IsMutant("nursery-tries"));
  if (again && PromoteSpare(nursery)) {
    Log(LogLevel::kWarning, fmt::format("the fork server {} {}; its spare takes its place",
                                        nursery.kind, DescribeExit(status)));
    BearOwed(nursery);
    KeepSpare(nursery);
    return;
  }
  DropSpare(nursery);
  for (int stream = 0; stream < 2; ++stream) {
    if (!nursery.pipes[stream].fd) continue;
    ReadPipe(nursery.pipes[stream], stream, nullptr, nursery.kind);
    if (nursery.pipes[stream].fd) loop_.Forget(nursery.pipes[stream].fd.get());
    nursery.pipes[stream].fd.Reset();
  }
  if (stopping_) return;
  if (again && (was_ready || WIFSIGNALED(status))) {
    if (was_ready)
      Log(LogLevel::kWarning, fmt::format("the fork server {} {}; it is started again",
                                          nursery.kind, DescribeExit(status)));
    StartNursery(nursery);
    return;
  }
  GiveUp(nursery, "the process that starts workers " + DescribeExit(status));
}

// --- spares

// Asks for one when no worker is being forked: a fork takes milliseconds.
void Agent::KeepSpare(Nursery& nursery) {
  if (stopping_ || nursery.pid < 0 || !nursery.ready || nursery.spare || nursery.moving ||
      !nursery.unborn.empty() || !births_.empty() || nursery.spares == kSpareTries)
    return;
  try {
    auto [mine, theirs] = UnixLink::Pair();
    Message fork{.head = {{"op", "fork"}, {"worker", kSpare}}};
    fork.fds.push_back(std::move(theirs));
    nursery.link->Send(std::move(fork));
    ++nursery.spares;
    nursery.spare = std::make_unique<UnixLink>(std::move(mine));
    WatchLink(*nursery.spare, [this, kind = nursery.kind] { HandleSpare(kind); });
  } catch (const Error& error) {  // Without one the next nursery imports everything again.
    Log(LogLevel::kInfo,
        fmt::format("the fork server {} has no spare: {}", nursery.kind, error.what()));
  }
}

void Agent::HandleSpare(const std::string& kind) {
  Nursery& nursery = nurseries_.at(kind);
  try {
    nursery.spare->Flush();
    while (auto message = nursery.spare->Receive())
      if (message->head.value("op", "") == "ready")
        nursery.spare_pid = message->head.at("pid").get<pid_t>();
  } catch (const Error& error) {
    if (error.code() != Code::kPeerLost) throw;
    DropSpare(nursery);
    KeepSpare(nursery);
  }
}

void Agent::DropSpare(Nursery& nursery) {
  if (nursery.spare) loop_.Forget(nursery.spare->fd());
  nursery.spare.reset();
  nursery.spare_pid = -1;
}

// It uses the pipes of the one before it.
bool Agent::PromoteSpare(Nursery& nursery) {
  if (nursery.spare_pid < 0 || IsMutant("spare")) return false;
  loop_.Forget(nursery.spare->fd());
  nursery.link = std::move(nursery.spare);
  nursery.pid = std::exchange(nursery.spare_pid, -1);
  nursery.ready = true;
  nursery.moving = false;
  nursery.spares = 0;
  WatchLink(*nursery.link, [this, kind = nursery.kind] { HandleNursery(kind); });
  return true;
}

// --- births

// The workers that it owes are not born. The next call starts it again.
void Agent::GiveUp(Nursery& nursery, const std::string& why) {
  nursery.failures = 0;
  std::vector<std::uint64_t> unborn = std::exchange(nursery.unborn, {});
  unborn.insert(unborn.end(), nursery.waiting.begin(), nursery.waiting.end());
  nursery.waiting.clear();
  for (const std::uint64_t id : unborn)
    if (const auto found = workers_.find(id); found != workers_.end())
      found->second.last_lines = nursery.last_lines;
  loop_.Post([this, unborn, how = "was not born: " + why] {
    for (const std::uint64_t id : unborn) WorkerDied(id, how);
  });
}

void Agent::Bear(Worker& worker) {
  Nursery& nursery = nurseries_.at(worker.kind);
  if (births_.size() >= most_births_) {
    nursery.waiting.push_back(worker.id);
    return;
  }
  nursery.unborn.push_back(worker.id);
  births_.insert(worker.id);
  if (nursery.pid > 0) {
    AskForWorker(nursery, worker);
  } else {
    StartNursery(nursery);
  }
}

// The next ones may be born.
void Agent::EndBirth(std::uint64_t id) {
  if (births_.erase(id) == 0) return;
  loop_.Post([this] {
    for (auto& [kind, nursery] : nurseries_) {
      while (!nursery.waiting.empty() && births_.size() < most_births_) {
        const auto next = workers_.find(nursery.waiting.front());
        nursery.waiting.pop_front();
        if (next != workers_.end()) Bear(next->second);
      }
      KeepSpare(nursery);
    }
  });
}

void Agent::AskForWorker(Nursery& nursery, Worker& worker) {
  try {
    SendBirth(nursery, worker);
  } catch (const Error& error) {
    std::erase(nursery.unborn, worker.id);
    loop_.Post([this, id = worker.id, how = std::string("was not born: ") + error.what()] {
      WorkerDied(id, how);
    });
  }
}

void Agent::SendBirth(Nursery& nursery, Worker& worker) {
  auto [mine, theirs] = UnixLink::Pair();
  auto [output, output_end] = MakePipe();
  auto [errors, errors_end] = MakePipe();
  auto [stacks, stacks_end] = MakePipe();
  const bool again = worker.link != nullptr;
  Message fork{.head = {{"op", "fork"}, {"worker", worker.id}}};
  fork.fds.push_back(std::move(theirs));
  fork.fds.push_back(std::move(output_end));
  fork.fds.push_back(std::move(errors_end));
  fork.fds.push_back(std::move(stacks_end));
  nursery.link->Send(std::move(fork));
  if (again) CloseWorker(worker);
  worker.link_lost = false;
  ++worker.births;
  worker.link = std::make_unique<UnixLink>(std::move(mine));
  worker.pipes[0].fd = std::move(output);
  worker.pipes[1].fd = std::move(errors);
  worker.pipes[kStacks].fd = std::move(stacks);
  worker.heard = Clock::now();
  UnixLink* const link = worker.link.get();
  const std::uint64_t id = worker.id;
  WatchLink(*link, [this, id] { HandleWorker(id); });
  const auto owner = [this, id]() -> Worker* {
    const auto found = workers_.find(id);
    return found == workers_.end() ? nullptr : &found->second;
  };
  for (int stream = 0; stream <= kStacks; ++stream)
    WatchPipe(worker.pipes[stream], stream, owner, worker.kind);
  link->Send({.head = {{"op", "settings"}, {"beat", silence_.count() / 5}}});
  if (worker.call != 0) link->Send({.head = worker.task, .parcel = worker.parcel});
}

}  // namespace orca::runtime
