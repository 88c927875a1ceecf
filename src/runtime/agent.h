// The agent of one node: see include/orca/runtime/agent.h.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "orca/core/unique_fd.h"
#include "runtime/guests.h"
#include "runtime/link.h"
#include "runtime/loop.h"
#include "runtime/node_shards.h"
#include "runtime/process.h"

namespace orca::runtime {

/// One thread; everything happens in its loop.
class Agent {
 public:
  /// `host` is where the driver was reached, empty when it is on this machine.
  Agent(std::unique_ptr<Link> driver, std::string host);
  ~Agent();
  void Run();
  /// Ends when `process` does. The link alone does not tell: a child that the driver forked holds
  /// its end, too.
  void EndWith(pid_t process);

 private:
  using Clock = Loop::Clock;

  static constexpr int kStacks = 2;  // of a worker's pipes

  /// A pipe that a process writes lines to.
  struct Pipe {
    UniqueFd fd;
    std::string unfinished;
  };
  struct Nursery {
    std::string kind;
    Program program;
    pid_t pid = -1;
    std::unique_ptr<UnixLink> link;
    Pipe pipes[2];
    std::deque<std::string> last_lines;
    int failures = 0;  // in a row, before it had forked a worker
    bool ready = false;
    bool moving = false;  // its memory, into huge pages
    // Its copy, which takes over when it dies: without the imports, so at once.
    std::unique_ptr<UnixLink> spare;
    pid_t spare_pid = -1;               // when it is ready
    int spares = 0;                     // that this process was asked for since it forked a worker
    std::vector<std::uint64_t> unborn;  // workers that it was asked for and that are not there yet
    std::deque<std::uint64_t> waiting;  // workers that it will be asked for when others are there
  };
  struct Worker {
    std::uint64_t id = 0;
    std::string kind;
    pid_t pid = -1;
    std::unique_ptr<UnixLink> link;  // nothing while its nursery was not asked for it
    Pipe pipes[3];                   // standard output, standard error, stacks
    std::deque<std::string> last_lines;
    std::uint64_t call = 0;  // 0: idle
    int rank = -1;
    Json task;      // what it was told to do, should it have to be born again
    Parcel parcel;  // and the function for it
    Clock::time_point heard;
    bool link_lost = false;
    int births = 0;  // more than one when its nursery died before it was there
    bool killed_for_silence = false;
    std::string fate;  // why the agent itself killed it
  };

  void HandleDriver();
  void Obey(Message message);
  void StartNursery(Nursery& nursery);
  void LaunchNursery(Nursery& nursery);
  void WatchLink(UnixLink& link, std::function<void()> handle);
  void HandleNursery(const std::string& kind);
  void NurseryDied(Nursery& nursery, int status);
  void GiveUp(Nursery& nursery, const std::string& why);
  void BearOwed(Nursery& nursery);
  void KeepSpare(Nursery& nursery);
  void HandleSpare(const std::string& kind);
  void DropSpare(Nursery& nursery);
  bool PromoteSpare(Nursery& nursery);
  void Call(Message message);
  void Bear(Worker& worker);
  void AskForWorker(Nursery& nursery, Worker& worker);
  void SendBirth(Nursery& nursery, Worker& worker);
  void EndBirth(std::uint64_t id);
  void HandleWorker(std::uint64_t id);
  void LoseLink(Worker& worker);
  void AwaitStatus(const Worker& worker);
  void WorkerDied(std::uint64_t id, const std::string& how, std::size_t peak = 0);
  void CancelCall(std::uint64_t call, const std::string& reason);
  void KillWorker(Worker& worker, const std::string& fate);
  void Reap();
  void HandleExit(pid_t pid, int status, std::size_t peak);
  void KillOrphans();
  void WatchForSilence();
  void WatchPipe(Pipe& pipe, int stream, std::function<Worker*()> owner, std::string kind);
  bool ReadPipe(Pipe& pipe, int stream, Worker* worker, const std::string& kind);
  void DrainPipes(Worker& worker);
  void TellOutput(const Worker* worker, const std::string& kind, int stream, std::string text);
  void CloseWorker(Worker& worker);
  void EndAll();
  void SendTo(NodeShards::Holder holder, Message message);
  std::vector<int> CpusOf(int local_rank, int local_world, int threads) const;

  Loop loop_;
  std::unique_ptr<Link> driver_;
  std::string driver_host_;
  Clock::time_point driver_heard_;
  Clock::time_point last_watch_ = Clock::now();
  bool stopping_ = false;
  UniqueFd signals_;
  UniqueFd process_;  // whose end is this one's
  std::map<std::string, Nursery> nurseries_;
  std::map<std::uint64_t, Worker> workers_;
  NodeShards shards_;
  Guests guests_;
  const std::size_t most_births_;  // at a time
  std::set<std::uint64_t>
      births_;  // workers that a nursery was asked for and that said nothing yet
  std::chrono::milliseconds silence_{5000};
  std::chrono::milliseconds grace_{2000};
  long oom_kills_ = 0;
};

}  // namespace orca::runtime
