// The driver's side of the runtime: see include/orca/runtime/context.h.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "orca/comm/store.h"
#include "orca/net/acceptor.h"
#include "orca/net/secret.h"
#include "orca/runtime/context.h"
#include "orca/runtime/event_log.h"
#include "runtime/agent_home.h"
#include "runtime/link.h"
#include "runtime/loop.h"
#include "runtime/node_shards.h"

namespace orca::runtime {

/// One end of a failed rank.
struct Cause {
  int rank = -1;
  std::string host;
  pid_t pid = -1;
  bool died = false;  // the process ended; otherwise its function raised
  bool echo = false;
  bool lost_peer = false;  // what the function raised says that another rank is out of reach
  std::string type;
  std::string text;
  std::string traceback;
  std::string last_lines;
  Parcel parcel;
};

class Controller {
 public:
  explicit Controller(const ContextOptions& options);
  ~Controller();

  int cores() const { return cores_.load(); }
  std::size_t memory() const { return memory_; }
  const std::string& plan() const { return plan_; }
  void Prepare(const NurserySpec& spec);
  std::shared_ptr<Run> Submit(RunSpec spec);
  std::optional<Event> NextEvent(std::chrono::milliseconds timeout);
  void PrintStacks();
  bool is_local() const { return options_.nodes == 0; }
  const std::shared_ptr<data::ShardHome>& shards() const { return shards_; }
  Door OpenDoor();
  std::uint64_t NewBasket();
  std::vector<std::shared_ptr<const data::ShardHold>> EmptyBasket(
      std::uint64_t basket, const std::vector<std::uint64_t>& shards);
  std::optional<Question> NextQuestion(std::chrono::milliseconds timeout);
  void Answer(const Question& question, const Reply& reply);
  void Stop();
  bool stopped() const {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }

 private:
  class Job;
  /// Workers that may keep their communicator from one call to the next.
  struct Group {
    std::uint64_t generation = 0;
    std::vector<std::uint64_t> members;
    bool broken = false;  // a rank was lost, or they are not at the same call
  };
  /// A machine with an agent.
  struct Node {
    int index = 0;
    std::unique_ptr<Link> link;
    pid_t pid = -1;  // of an agent that this process started
    bool remote = false;
    bool joined = false;
    bool lost = false;
    std::string host;
    std::vector<std::string> masters;  // "address:port" where torch's ranks may meet, one a call
    int cores = 0;
    Loop::Clock::time_point heard;
  };
  struct Worker {
    std::uint64_t id = 0;
    int node = 0;
    std::string kind;
    pid_t pid = -1;
    std::uint64_t call = 0;  // 0: idle
    int rank = -1;
    Loop::Clock::time_point idle_since = {};
    std::deque<std::string> last_lines = {};
    std::shared_ptr<Group> group = {};  // the last one that it belonged to
  };

  void StartAgent();
  void ListenForAgents();
  void AddNode(std::unique_ptr<Link> link, pid_t pid);
  void AwaitAgents();
  void HandleAgent(Node& node);
  void Hear(Node& node, Message message);
  void HearHello(Node& node, const Json& head);
  void AgentLost(Node& node, const std::string& why, bool killed = false);
  void WatchForSilence();
  void ReapAgents();
  void WakeToSend();
  void Schedule();
  void Begin(const std::shared_ptr<Job>& job);
  static std::chrono::milliseconds BackOff(Job& job);
  void BeginLater(const std::shared_ptr<Job>& job);
  std::vector<int> NodesOfRanks(int world) const;
  bool IsHeld(std::uint64_t worker) const;
  void LetGoOfIdle();
  void LetGo(std::uint64_t id);
  std::uint64_t IdleWorker(const std::string& kind, int node,
                           const std::vector<std::uint64_t>& taken);
  std::shared_ptr<Group> GroupOf(const std::vector<std::uint64_t>& members);
  void OpenShards();
  void SendAboutShards(const Message& message);
  void CountHold(std::uint64_t shard, int change);
  std::vector<std::shared_ptr<const data::ShardHold>> ResultShards(const Node& node,
                                                                   const Json& head);
  bool HearAboutShards(Node& node, Message& message);
  void RouteFetch(std::uint64_t shard, int wanted_by);
  void RouteBytes(Message message);
  void FailFetches(int lost_node, const std::string& why);
  void NoteStep(const Json& step, int rank);
  void HearDone(const Node& node, Message message);
  void TellReturned(Job& job);
  void HearFailed(Message message);
  void HearPace(const Json& head);
  void HearNursery(const Node& node, const Json& head);
  void HearOutput(const Json& head);
  void HearStack(const Json& head);
  void RefuseKind(const std::string& kind, const std::string& why);
  void HearExited(Message message);
  void WorkerLost(std::uint64_t id, Cause cause);
  void AddCause(const std::shared_ptr<Job>& job, Cause cause);
  void ConcludeAfter(const Job& job, std::chrono::milliseconds wait);
  void Conclude(std::uint64_t call, int attempt);
  bool AwaitsSilentNode(const Job& job) const;
  bool SpansNodes(const Job& job) const;
  void Finish(const std::shared_ptr<Job>& job);
  void RankEnded(const std::shared_ptr<Job>& job, int rank);
  void CheckLocal() const;
  void CancelOthers(const Job& job, const std::string& reason);
  void CancelJob(std::uint64_t call, const std::string& reason);
  std::shared_ptr<Job> FindJob(std::uint64_t call) const;
  RunFailure Describe(const Job& job) const;
  const std::string& HostOf(const Worker& worker) const;
  void Tell(Event event);
  void SendStacks();
  void AskForStacks();
  void OpenLog();
  void AnswerVisitors();
  void Note(const std::string& what, int rank, const std::string& text,
            std::map<std::string, double> numbers = {});
  void FailAll(const std::string& why);

  ContextOptions options_;
  std::atomic<int> cores_ = 0;  // grows when agents join
  std::size_t memory_ = 0;
  std::string id_;
  net::Secret secret_;
  std::shared_ptr<comm::Store> store_;
  std::string store_address_;
  std::string plan_;
  std::filesystem::path folder_;  // of the run; empty: there is none
  pid_t owner_ = ::getpid();
  std::shared_ptr<AgentHome> home_;
  std::shared_ptr<data::ShardHome> shards_;  // the same

  std::mutex door_mutex_;  // guards door_; taken before all others
  Door door_;

  Loop loop_;
  std::mutex state_mutex_;  // guards all up to the next mutex; taken before that
  std::vector<std::unique_ptr<Node>> nodes_;
  std::unique_ptr<net::Acceptor> acceptor_;
  UniqueFd visitors_;                                 // where "orca stacks" knocks
  std::vector<UniqueFd> visits_;                      // who is told of the next stacks
  Loop::Clock::time_point prints_stacks_until_ = {};  // as output of their ranks
  std::map<std::string, NurserySpec> nurseries_;
  std::map<std::uint64_t, Worker> workers_;
  std::uint64_t last_generation_ = 0;
  std::optional<EventLog> log_;
  Loop::Clock::time_point last_noted_;
  Loop::Clock::time_point last_watch_ = Loop::Clock::now();
  std::uint64_t last_worker_ = 0;
  std::map<std::uint64_t, std::shared_ptr<Job>> jobs_;
  std::deque<std::shared_ptr<Job>> waiting_;
  int busy_ = 0;                                // workers of running jobs
  std::unique_ptr<NodeShards> own_shards_;      // of a driver without an agent beside it
  std::map<std::uint64_t, int> shard_holds_;    // of such a driver
  std::multimap<std::uint64_t, int> fetching_;  // shards, and the nodes that want them
  std::string lost_;                            // why no node is left
  std::map<std::string, std::string> refused_;  // why workers of a kind cannot be used

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Event> events_;
  std::deque<Question> questions_;
  std::uint64_t last_call_ = 0;
  int joined_ = 0;  // nodes
  std::string joined_hosts_;
  std::string join_error_;
  bool stopped_ = false;
  std::shared_ptr<LoopThread> thread_;  // the last: it uses all of the above
};

}  // namespace orca::runtime
