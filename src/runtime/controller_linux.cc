#include <dlfcn.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/log.h"
#include "orca/net/handshake.h"
#include "orca/net/socket.h"
#include "orca/runtime/agent.h"
#include "runtime/controller.h"
#include "runtime/process.h"

namespace orca::runtime {
namespace {

using std::chrono::milliseconds;

// How long the causes of a failure are collected before the first of them is shown; an echo alone
// waits for its origin.
milliseconds Collect(const ContextOptions& options) { return options.silence / 25; }
milliseconds CollectEchoes(const ContextOptions& options) {
  return std::max(milliseconds(500), options.silence / 5);
}
constexpr milliseconds kStopWait(5000);
constexpr milliseconds kNotedCalls(50);
constexpr milliseconds kJoinReport(10'000);
constexpr std::size_t kMaxEvents = 100'000;

// "orca" lies beside the library, as in a wheel and in the build tree, or in the bin of its prefix.
std::string FindAgent(const std::string& wanted) {
  namespace fs = std::filesystem;
  if (!wanted.empty()) return wanted;
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&OomKills), &info) == 0 || info.dli_fname == nullptr)
    throw Error(Code::kInternal, "the engine does not know where it lies");
  const fs::path folder = fs::absolute(fs::path(info.dli_fname)).parent_path();
  const std::vector<fs::path> places = {folder / "orca", folder / ".." / "bin" / "orca"};
  for (const fs::path& place : places)
    if (::access(place.c_str(), X_OK) == 0 && fs::is_regular_file(place))
      return fs::weakly_canonical(place).string();
  throw Error(Code::kUnavailable,
              fmt::format("the program \"orca\" is not at {}; install the package again",
                          places.front().string()));
}

void Print(const Event& event) {
  if (event.kind != Event::Kind::kOutput) {
    const LogLevel level = event.level >= 40   ? LogLevel::kError
                           : event.level >= 30 ? LogLevel::kWarning
                           : event.level >= 20 ? LogLevel::kInfo
                                               : LogLevel::kDebug;
    Log(level, event.rank < 0 ? event.text : fmt::format("[rank {}] {}", event.rank, event.text));
    return;
  }
  std::string text;
  for (std::size_t at = 0; at < event.text.size();) {
    const std::size_t end = std::min(event.text.find('\n', at), event.text.size());
    if (event.rank >= 0) text += fmt::format("[rank {}] ", event.rank);
    text += event.text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  std::FILE* const out = event.stream == 0 ? stdout : stderr;
  std::fputs(text.c_str(), out);
  std::fflush(out);
}

void SendNursery(Link& agent, const NurserySpec& spec) {
  agent.Send({.head = {{"op", "nursery"},
                       {"kind", spec.kind},
                       {"command", spec.command},
                       {"environment", spec.environment},
                       {"directory", spec.directory}}});
}

double Now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Sorts by time, and is different in every process.
std::string NewId() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%d-%H%M%S-", &utc);
  return text.data() + net::Secret::Random().ToHex().substr(0, 6);
}

}  // namespace

/// A call, from Submit to its end.
class Controller::Job final : public Run {
 public:
  Job(Controller& controller, RunSpec wanted, std::uint64_t number)
      : call(number), spec(std::move(wanted)), controller_(controller) {}

  bool Wait(milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    return ended_condition_.wait_for(lock, timeout, [this] { return ended_; });
  }
  const std::vector<Parcel>& results() const override { return results_; }
  const std::optional<RunFailure>& failure() const override { return failure_; }
  void Cancel(const std::string& reason) override {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    controller_.loop_.Post([&controller = controller_, number = call, reason] {
      const std::lock_guard state(controller.state_mutex_);
      controller.CancelJob(number, reason);
    });
  }

  void End(std::vector<Parcel> results, std::optional<RunFailure> failure) {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    results_ = std::move(results);
    failure_ = std::move(failure);
    ended_ = true;
    ended_condition_.notify_all();
  }
  bool ended() const {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

  // The loop's thread only.
  const std::uint64_t call;
  RunSpec spec;
  int attempt = 0;
  int restarts = 0;
  std::vector<std::uint64_t> members;  // worker of each rank
  std::shared_ptr<Group> group;
  std::vector<Parcel> gathered;
  std::vector<std::uint64_t> sequences;
  std::set<int> running;  // ranks that have not ended
  std::vector<Cause> causes;
  bool concluding = false;
  bool noted = true;   // in the log
  bool again = false;  // begin anew when all ranks have ended
  std::string cancel_reason;

 private:
  Controller& controller_;
  mutable std::mutex mutex_;
  std::condition_variable ended_condition_;
  bool ended_ = false;
  std::vector<Parcel> results_;
  std::optional<RunFailure> failure_;
};

// --- beginning and end

Controller::Controller(const ContextOptions& options)
    : options_(options), id_(NewId()), secret_(net::Secret::Random()) {
  const int allowed =
      std::max(1, std::min(static_cast<int>(AllowedCpus().count()), CgroupCpuLimit()));
  if (options.cores < 0)
    throw Error(Code::kInvalidArgument,
                fmt::format("cores {} is not positive; give the number of cores to use, or none "
                            "for all {}",
                            options.cores, allowed));
  if (options.cores > allowed)
    Log(LogLevel::kWarning,
        fmt::format("cores={} is more than the {} that this process may use; workers will share "
                    "them",
                    options.cores, allowed));
  cores_ = options.cores > 0 ? options.cores : allowed;
  const MemoryLeft left = AvailableMemory();
  if (options.memory > left.bytes)
    Log(LogLevel::kWarning,
        fmt::format("memory={} is more than the {} that are left ({})", HumanBytes(options.memory),
                    HumanBytes(left.bytes), left.limit));
  memory_ = options.memory > 0 ? options.memory : left.bytes;
  const std::string host = options.nodes > 0 ? options.address.substr(0, options.address.rfind(':'))
                                             : std::string("127.0.0.1");
  store_ = comm::ServeTcpStore(host + ":0", secret_, &store_address_);
  OpenLog();
  if (options.nodes > 0) {
    ListenForAgents();
  } else {
    StartAgent();
  }
  WatchForSilence();
  thread_ = std::jthread([this] {
    ::pthread_setname_np(::pthread_self(), "orca-driver");
    loop_.Run();
  });
  try {
    AwaitAgents();
  } catch (...) {
    Stop();
    throw;
  }
}

Controller::~Controller() { Stop(); }

void Controller::StartAgent() {
  auto [mine, theirs] = UnixLink::Pair();
  const pid_t pid =
      StartDetached({.command = {FindAgent(options_.agent), "agent", "--fd", "3"}}, theirs);
  AddNode(std::make_unique<UnixLink>(std::move(mine)), pid);
}

void Controller::ListenForAgents() {
  if (options_.secret_file.empty())
    throw Error(
        Code::kInvalidArgument,
        "secret_file is missing; give a file of mode 0600 with 64 hex digits, the same that "
        "the agents get");
  if (options_.address.rfind(':') == std::string::npos)
    throw Error(Code::kInvalidArgument,
                fmt::format("address \"{}\" has no port; give \"host:port\"", options_.address));
  std::string bound;
  acceptor_ = std::make_unique<net::Acceptor>(
      net::Secret::FromFile(options_.secret_file),
      [](const net::Hello& hello) {
        if (hello.role != kAgentRole)
          throw Error(Code::kUnauthenticated, "it is no agent of this release");
      },
      [this](net::Acceptor::Connection connection) {
        AddNode(std::make_unique<TcpLink>(std::move(connection.socket), connection.keys,
                                          net::SealedChannel::Side::kServer),
                -1);
      });
  acceptor_->Listen(net::ListenTcp(options_.address, &bound), false);
  Log(LogLevel::kInfo, fmt::format("waiting at {} for {} agent{}", bound, options_.nodes,
                                   options_.nodes == 1 ? "" : "s"));
  loop_.Include([this](std::vector<pollfd>& fds) { acceptor_->AppendPollFds(fds); },
                [this] {
                  const std::lock_guard lock(state_mutex_);
                  acceptor_->Handle();
                });
}

void Controller::AddNode(std::unique_ptr<Link> link, pid_t pid) {
  auto node = std::make_unique<Node>();
  node->index = static_cast<int>(nodes_.size());
  node->link = std::move(link);
  node->pid = pid;
  node->remote = pid < 0;
  node->heard = Loop::Clock::now();
  Node* const added = node.get();
  nodes_.push_back(std::move(node));
  loop_.Watch(
      added->link->fd(),
      [this, added] {
        const std::lock_guard lock(state_mutex_);
        return static_cast<short>(added->link->wants_write() ? POLLIN | POLLOUT : POLLIN);
      },
      [this, added](short) {
        const std::lock_guard lock(state_mutex_);
        HandleAgent(*added);
      });
  added->link->Send({.head = {{"op", "settings"},
                              {"silence", options_.silence.count()},
                              {"grace", options_.grace.count()}}});
  for (const auto& [kind, spec] : nurseries_) SendNursery(*added->link, spec);
}

void Controller::AwaitAgents() {
  const Deadline deadline = Deadline::After(options_.start_timeout);
  const int wanted = std::max(1, options_.nodes);
  std::unique_lock lock(mutex_);
  while (join_error_.empty() && joined_ < wanted) {
    const auto nap = std::min(deadline.Left(), kJoinReport);
    if (changed_.wait_for(lock, nap, [&] { return joined_ >= wanted || !join_error_.empty(); }))
      continue;
    const std::string state = fmt::format("{} of {} agents have joined{}", joined_, wanted,
                                          joined_hosts_.empty() ? "" : ": " + joined_hosts_);
    if (deadline.Left() == milliseconds(0))
      throw Error(Code::kTimeout,
                  fmt::format("{} within {:.0f} s; start the others with \"orca agent --join {} "
                              "--secret-file F\"",
                              state, std::chrono::duration<double>(options_.start_timeout).count(),
                              options_.address));
    Log(LogLevel::kInfo, state + "; waiting for the others");
  }
  if (!join_error_.empty()) throw Error(Code::kUnavailable, join_error_);
  plan_ = fmt::format("context {}: {} core{} and {} of memory on {}", id_, cores(),
                      cores() == 1 ? "" : "s", HumanBytes(memory_), joined_hosts_);
}

void Controller::Stop() {
  if (::getpid() != owner_) {  // a forked child has neither the thread nor the agent
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) {
    loop_.Post([this] {
      const std::lock_guard lock(state_mutex_);
      FailAll("the context was stopped");
      for (const auto& node : nodes_) node->link->Send({.head = {{"op", "stop"}}});
    });
    loop_.Stop();
    thread_.join();
  }
  ReapAgents();
  store_.reset();
  visitors_.Reset();
  Note("stopped", -1, "");
  log_.reset();
}

// An agent whose connection is closed stops, whatever it is at.
void Controller::ReapAgents() {
  const Deadline deadline = Deadline::After(kStopWait);
  std::vector<pid_t> agents;
  for (const auto& node : nodes_)
    if (node->pid > 0) agents.push_back(node->pid);
  nodes_.clear();
  acceptor_.reset();
  for (const pid_t pid : agents) {
    int status = 0;
    for (;;) {
      const pid_t ended = ::waitpid(pid, &status, WNOHANG);
      if (ended == pid || (ended < 0 && errno == ECHILD)) break;
      if (deadline.Passed()) {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, &status, 0);
        break;
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
}

// Whoever of the same user knocks wants to see the stacks.
void Controller::AnswerVisitors() {
  while (const UniqueFd visitor = net::Accept(visitors_.get())) {
    try {
      net::CheckPeerUser(visitor.get());
      PrintStacks();
    } catch (const Error& error) {
      Log(LogLevel::kWarning, error.what());
    }
  }
}

void Controller::PrintStacks() {
  const std::lock_guard lock(state_mutex_);
  for (const auto& node : nodes_)
    if (!node->lost) node->link->Send({.head = {{"op", "stacks"}}});
  WakeToSend();
}

// A run without a log is better than none.
void Controller::OpenLog() {
  try {
    log_ = EventLog::Create(NewRunFolder(id_).path / "events.log");
  } catch (const Error& error) {
    Log(LogLevel::kWarning, std::string("no event log: ") + error.what());
    return;
  }
  std::string door;
  visitors_ = net::ListenUnix(&door);
  loop_.Watch(visitors_.get(), [this] { AnswerVisitors(); });
  Note("context", -1, door,
       {{"pid", ::getpid()}, {"started", StartTime(::getpid())}, {"cores", cores()}});
}

void Controller::Note(const std::string& what, int rank, const std::string& text,
                      std::map<std::string, double> numbers) {
  if (log_)
    log_->Append(
        {.time = Now(), .what = what, .rank = rank, .text = text, .numbers = std::move(numbers)});
}

void Controller::Prepare(const NurserySpec& spec) {
  if (spec.command.empty())
    throw Error(Code::kInvalidArgument, "a nursery needs a command to start it");
  const std::lock_guard lock(state_mutex_);
  if (!nurseries_.emplace(spec.kind, spec).second) return;
  for (const auto& node : nodes_)
    if (!node->lost) SendNursery(*node->link, spec);
  WakeToSend();
}

// What did not fit into a connection is sent by the loop.
void Controller::WakeToSend() {
  if (std::ranges::any_of(nodes_, [](const auto& node) { return node->link->wants_write(); }))
    loop_.Post([] {});
}

// --- the agent

void Controller::HandleAgent(Node& node) {
  try {
    node.link->Flush();
    while (auto message = node.link->Receive()) {
      node.heard = Loop::Clock::now();
      Hear(node, std::move(*message));
    }
  } catch (const Error& error) {
    AgentLost(node, error.what());
  }
}

// Its workers are gone, or will be before anybody listens to them again.
void Controller::AgentLost(Node& node, const std::string& why) {
  if (node.lost) return;
  node.lost = true;
  loop_.Forget(node.link->fd());
  std::string how = why;
  for (int tries = 0; node.pid > 0 && tries < 100; ++tries) {
    int status = 0;
    if (::waitpid(node.pid, &status, WNOHANG) == node.pid) {
      how = DescribeExit(status);
      node.pid = -1;
    } else {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  const std::string text = fmt::format("the agent of node {} ({}) is lost: it {}", node.index,
                                       node.host.empty() ? "unknown" : node.host, how);
  Note("agent lost", -1, text);
  {
    const std::lock_guard lock(mutex_);
    if (!node.joined) join_error_ = text;
    changed_.notify_all();
  }
  if (std::ranges::all_of(nodes_, [](const auto& other) { return other->lost; })) {
    lost_ = text + "; its workers are lost. Stop the context and start a new one";
    FailAll(lost_);
    return;
  }
  std::vector<std::uint64_t> gone;
  for (const auto& [id, worker] : workers_)
    if (worker.node == node.index) gone.push_back(id);
  for (const std::uint64_t id : gone) {
    WorkerLost(id, {.host = node.host,
                    .pid = workers_.at(id).pid,
                    .time = Now(),
                    .died = true,
                    .text = "was lost with its node: " + text});
  }
}

void Controller::WatchForSilence() {
  const auto now = Loop::Clock::now();
  // If this thread itself did not run, silence says nothing about the others.
  const bool slept = now - last_watch_ > options_.silence;
  last_watch_ = now;
  for (const auto& node : nodes_) {
    if (node->lost) continue;
    if (node->remote) node->link->Send({.head = {{"op", "beat"}}});
    if (slept) node->heard = now;
    if (now - node->heard <= 2 * options_.silence) continue;
    std::string how = fmt::format("gave no sign of life for {:.1f} s",
                                  std::chrono::duration<double>(now - node->heard).count());
    if (node->pid > 0) {
      how += fmt::format(" (the process was {}) and was killed", ProcessState(node->pid));
      ::kill(node->pid, SIGKILL);
      ::waitpid(node->pid, nullptr, 0);
      node->pid = -1;
    }
    AgentLost(*node, how);
  }
  loop_.At(now + options_.silence / 5, [this] {
    const std::lock_guard lock(state_mutex_);
    WatchForSilence();
  });
}

void Controller::HearHello(Node& node, const Json& head) {
  node.host = head.at("host").get<std::string>();
  node.masters = head.at("masters").get<std::vector<std::string>>();
  node.cores = node.remote ? head.at("cores").get<int>() : cores();
  const auto version = head.at("version").get<std::string>();
  const std::lock_guard lock(mutex_);
  if (version != ORCA_VERSION) {
    join_error_ = fmt::format(
        "the agent on {} is of version {}, this program of {}; install the same on both", node.host,
        version, ORCA_VERSION);
  }
  node.joined = true;
  if (node.remote && options_.cores == 0) cores_ = (joined_ == 0 ? 0 : cores()) + node.cores;
  joined_hosts_ += fmt::format("{}{} (agent {})", joined_hosts_.empty() ? "" : ", ", node.host,
                               head.at("pid").get<int>());
  ++joined_;
  changed_.notify_all();
}

void Controller::Hear(Node& node, Message message) {
  const std::string op = message.head.value("op", "");
  if (op == "done") {
    HearDone(std::move(message));
  } else if (op == "failed") {
    HearFailed(std::move(message));
  } else if (op == "exited") {
    HearExited(std::move(message));
  } else if (op == "output") {
    Tell({.kind = Event::Kind::kOutput,
          .rank = message.head.at("rank").get<int>(),
          .stream = message.head.at("stream").get<int>(),
          .text = message.head.at("text").get<std::string>()});
  } else if (op == "log") {
    Tell({.kind = Event::Kind::kLog,
          .rank = message.head.at("rank").get<int>(),
          .level = message.head.at("level").get<int>(),
          .logger = message.head.at("logger").get<std::string>(),
          .text = message.head.at("text").get<std::string>()});
  } else if (op == "started") {
    const auto found = workers_.find(message.head.at("worker").get<std::uint64_t>());
    if (found == workers_.end()) return;
    found->second.pid = message.head.at("pid").get<pid_t>();
    Note("worker", found->second.rank, found->second.kind,
         {{"worker", static_cast<double>(found->first)}, {"pid", found->second.pid}});
  } else if (op == "nursery") {
    const int threads = message.head.at("threads").get<int>();
    if (threads > 1)
      Tell({.text = fmt::format("the nursery {} has {} threads; a fork there may hang: set "
                                "OMP_NUM_THREADS=1 and import less before orca",
                                message.head.at("kind").get<std::string>(), threads)});
  } else if (op == "hello") {
    HearHello(node, message.head);
  }
}

// --- calls

std::shared_ptr<Run> Controller::Submit(RunSpec spec) {
  if (spec.workers < 0)
    throw Error(
        Code::kInvalidArgument,
        fmt::format("workers {} is not positive; give the number of workers", spec.workers));
  if (spec.threads < 0)
    throw Error(Code::kInvalidArgument, fmt::format("threads {} is not positive; give the number "
                                                    "of compute threads of a worker",
                                                    spec.threads));
  if (spec.max_restarts < 0)
    throw Error(Code::kInvalidArgument,
                fmt::format("max_restarts {} is negative; 0 means never", spec.max_restarts));
  if (spec.workers == 0) spec.workers = cores_;
  if (spec.threads == 0) spec.threads = std::max(1, cores() / spec.workers);
  std::shared_ptr<Job> job;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_)
      throw Error(Code::kFailedPrecondition,
                  "the context was stopped; call init_orca_context again");
    job = std::make_shared<Job>(*this, std::move(spec), ++last_call_);
  }
  // Here and now: waking the loop for it would take longer than a short call.
  const std::lock_guard lock(state_mutex_);
  if (!lost_.empty()) {
    job->End({}, RunFailure{.text = lost_});
    return job;
  }
  jobs_[job->call] = job;
  waiting_.push_back(job);
  Schedule();
  WakeToSend();
  return job;
}

std::shared_ptr<Controller::Job> Controller::FindJob(std::uint64_t call) const {
  const auto found = jobs_.find(call);
  return found == jobs_.end() ? nullptr : found->second;
}

// First come, first served; a call that wants more than there is runs alone.
void Controller::Schedule() {
  while (!waiting_.empty()) {
    const auto job = waiting_.front();
    if (busy_ > 0 && busy_ + job->spec.workers > cores_) return;
    waiting_.pop_front();
    busy_ += job->spec.workers;
    Begin(job);
  }
}

void Controller::Begin(const std::shared_ptr<Job>& job) {
  // Who survived keeps its rank, unless the group shrank.
  for (std::uint64_t& id : job->members)
    if (!workers_.contains(id)) id = 0;
  if (job->spec.on_failure == OnFailure::kShrink) std::erase(job->members, 0U);
  const auto world = static_cast<std::size_t>(job->spec.workers);
  job->running.clear();
  job->causes.clear();
  job->concluding = false;
  job->again = false;
  job->gathered.assign(world, {});
  job->sequences.assign(world, 0);
  job->members.resize(world, 0);
  const std::vector<int> places = NodesOfRanks(job->spec.workers);
  for (std::size_t rank = 0; rank < world; ++rank) {
    std::uint64_t& id = job->members[rank];
    if (id == 0) id = IdleWorker(job->spec.kind, places[rank], job->members);
  }
  std::map<int, Json> members;  // of each node
  for (std::size_t rank = 0; rank < world; ++rank) {
    Worker& worker = workers_.at(job->members[rank]);
    worker.call = job->call;
    worker.rank = static_cast<int>(rank);
    job->running.insert(static_cast<int>(rank));
    members[worker.node].push_back({rank, worker.id});
  }
  job->group = GroupOf(job->members);
  // Calls in quick succession would fill the disk; their numbers still count them.
  job->noted = job->attempt > 0 || Loop::Clock::now() - last_noted_ > kNotedCalls;
  if (job->noted) last_noted_ = Loop::Clock::now();
  if (job->noted)
    Note("call", -1, job->spec.kind,
         {{"call", static_cast<double>(job->call)},
          {"workers", job->spec.workers},
          {"threads", job->spec.threads},
          {"attempt", job->attempt}});
  const bool pin = job->spec.workers * job->spec.threads == cores_;
  const auto& masters =
      nodes_[static_cast<std::size_t>(workers_.at(job->members[0]).node)]->masters;
  for (auto& [node, ranks] : members) {
    nodes_[static_cast<std::size_t>(node)]->link->Send(
        {.head = {{"op", "call"},
                  {"call", job->call},
                  {"kind", job->spec.kind},
                  {"members", std::move(ranks)},
                  {"world", world},
                  {"node", node},
                  {"attempt", job->attempt},
                  {"threads", job->spec.threads},
                  {"pin", pin},
                  {"master", masters.at(job->call % masters.size())},
                  {"group", "run-" + id_},
                  {"generation", job->group->generation},
                  {"store", store_address_},
                  {"secret", secret_.ToHex()}},
         .parcel = job->spec.parcel});
  }
}

// A block of ranks for each node, in proportion to its cores.
std::vector<int> Controller::NodesOfRanks(int world) const {
  std::map<int, int> counts;
  for (int rank = 0; rank < world; ++rank) {
    const Node* emptiest = nullptr;
    for (const auto& node : nodes_) {
      if (node->lost || !node->joined) continue;
      if (emptiest == nullptr ||
          (counts[node->index] + 1) * emptiest->cores < (counts[emptiest->index] + 1) * node->cores)
        emptiest = node.get();
    }
    ++counts[emptiest->index];
  }
  std::vector<int> places;
  for (const auto& [node, count] : counts)
    places.insert(places.end(), static_cast<std::size_t>(count), node);
  return places;
}

// One of `kind` on `node` that is not among `taken`, the oldest first, or a new one.
std::uint64_t Controller::IdleWorker(const std::string& kind, int node,
                                     const std::vector<std::uint64_t>& taken) {
  // A rank that has ended stays with its call, which may yet begin anew.
  const auto is_held = [this](std::uint64_t id) {
    return std::ranges::any_of(jobs_, [id](const auto& entry) {
      const Job& job = *entry.second;
      return !job.ended() && std::ranges::find(job.members, id) != job.members.end();
    });
  };
  for (const auto& [id, worker] : workers_) {
    const bool fits = worker.kind == kind && worker.node == node;
    const bool is_taken = std::ranges::find(taken, id) != taken.end();
    if (worker.call == 0 && fits && !is_taken && !is_held(id)) return id;
  }
  const std::uint64_t id = ++last_worker_;
  workers_[id] = {.id = id, .node = node, .kind = kind};
  return id;
}

// The same workers in the same order go on with the group that they have, if none of them has been
// in another one since.
std::shared_ptr<Controller::Group> Controller::GroupOf(const std::vector<std::uint64_t>& members) {
  auto last = workers_.at(members.front()).group;
  const bool same =
      last && !last->broken && last->members == members &&
      std::ranges::all_of(members, [&](std::uint64_t id) { return workers_.at(id).group == last; });
  if (same) return last;
  auto group = std::make_shared<Group>(Group{.generation = ++last_generation_, .members = members});
  for (const std::uint64_t id : members) workers_.at(id).group = group;
  return group;
}

void Controller::HearDone(Message message) {
  const auto job = FindJob(message.head.at("call").get<std::uint64_t>());
  const int rank = message.head.at("rank").get<int>();
  const auto worker = workers_.find(message.head.at("worker").get<std::uint64_t>());
  if (worker != workers_.end()) worker->second.call = 0;
  if (!job || !job->running.contains(rank)) return;
  job->gathered[static_cast<std::size_t>(rank)] = std::move(message.parcel);
  job->sequences[static_cast<std::size_t>(rank)] = message.head.at("sequence").get<std::uint64_t>();
  RankEnded(job, rank);
}

void Controller::HearFailed(Message message) {
  const Json& head = message.head;
  const auto job = FindJob(head.at("call").get<std::uint64_t>());
  const int rank = head.at("rank").get<int>();
  const auto worker = workers_.find(head.at("worker").get<std::uint64_t>());
  if (worker != workers_.end()) worker->second.call = 0;
  if (!job || !job->running.contains(rank)) return;
  AddCause(job, {.rank = rank,
                 .host = worker == workers_.end() ? "" : HostOf(worker->second),
                 .pid = worker == workers_.end() ? -1 : worker->second.pid,
                 .time = head.at("time").get<double>(),
                 .echo = head.value("echo", false),
                 .type = head.value("type", ""),
                 .text = head.value("text", ""),
                 .traceback = head.value("traceback", ""),
                 .parcel = std::move(message.parcel)});
  RankEnded(job, rank);
}

void Controller::HearExited(Message message) {
  const Json& head = message.head;
  const auto id = head.at("worker").get<std::uint64_t>();
  const auto worker = workers_.find(id);
  if (worker == workers_.end()) return;
  WorkerLost(id, {.host = HostOf(worker->second),
                  .pid = head.at("pid").get<pid_t>(),
                  .time = head.at("time").get<double>(),
                  .died = true,
                  .text = head.at("how").get<std::string>(),
                  .last_lines = head.at("last").get<std::string>()});
}

void Controller::WorkerLost(std::uint64_t id, Cause cause) {
  const auto worker = workers_.find(id);
  const auto job = FindJob(worker->second.call);
  cause.rank = worker->second.rank;
  Note("exited", cause.rank, cause.text, {{"worker", static_cast<double>(id)}, {"pid", cause.pid}});
  if (worker->second.group) worker->second.group->broken = true;
  workers_.erase(worker);
  if (!job || !job->running.contains(cause.rank)) return;
  const int rank = cause.rank;
  AddCause(job, std::move(cause));
  RankEnded(job, rank);
}

const std::string& Controller::HostOf(const Worker& worker) const {
  return nodes_[static_cast<std::size_t>(worker.node)]->host;
}

void Controller::AddCause(const std::shared_ptr<Job>& job, Cause cause) {
  const bool echo = cause.echo;
  job->causes.push_back(std::move(cause));
  const auto conclude_after = [&](milliseconds wait) {
    loop_.At(Loop::Clock::now() + wait, [this, call = job->call, attempt = job->attempt] {
      const std::lock_guard lock(state_mutex_);
      Conclude(call, attempt);
    });
  };
  if (!echo && !job->concluding) {
    job->concluding = true;
    conclude_after(job->running.size() > 1 ? Collect(options_) : milliseconds(0));
  } else if (echo && job->causes.size() == 1) {
    conclude_after(CollectEchoes(options_));
  }
}

// The causes are there: decide whether the call fails or begins anew.
void Controller::Conclude(std::uint64_t call, int attempt) {
  const auto job = FindJob(call);
  if (!job || job->attempt != attempt || job->again || job->ended()) return;
  if (!job->cancel_reason.empty()) return;  // it ends when all ranks have stopped
  job->group->broken = true;
  const RunFailure failure = Describe(*job);
  const bool died = std::ranges::any_of(job->causes, [](const Cause& c) { return c.died; });
  const bool raised =
      std::ranges::any_of(job->causes, [](const Cause& c) { return !c.died && !c.echo; });
  const int dead =
      static_cast<int>(std::ranges::count_if(job->causes, [](const Cause& c) { return c.died; }));
  const bool can_shrink =
      job->spec.on_failure == OnFailure::kShrink && job->spec.workers - dead >= 1;
  const bool can_restart =
      job->spec.on_failure == OnFailure::kRestart && job->restarts < job->spec.max_restarts;
  if (died && !raised && job->cancel_reason.empty() && (can_shrink || can_restart)) {
    ++job->restarts;
    job->again = true;
    if (can_shrink) {
      busy_ -= dead;
      job->spec.workers -= dead;
    }
    Tell({.level = 30,
          .text = fmt::format("{}; {}", failure.text,
                              can_shrink ? fmt::format("the other {} begin anew", job->spec.workers)
                                         : fmt::format("all ranks begin anew (restart {} of {})",
                                                       job->restarts, job->spec.max_restarts))});
    CancelOthers(*job, "another rank was lost; the call begins anew");
    if (job->running.empty()) RankEnded(job, -1);
    return;
  }
  Note("failed", failure.rank,
       failure.text + (failure.traceback.empty() ? "" : "\n" + failure.traceback),
       {{"call", static_cast<double>(job->call)}});
  job->End({}, failure);
  CancelOthers(*job, "another rank failed");
  if (job->running.empty()) Finish(job);
}

void Controller::CancelOthers(const Job& job, const std::string& reason) {
  if (job.running.empty()) return;
  for (const auto& node : nodes_)
    if (!node->lost)
      node->link->Send({.head = {{"op", "cancel"}, {"call", job.call}, {"reason", reason}}});
}

void Controller::RankEnded(const std::shared_ptr<Job>& job, int rank) {
  job->running.erase(rank);
  if (!job->running.empty()) return;
  if (job->again) {
    ++job->attempt;
    Begin(job);
    return;
  }
  if (!job->cancel_reason.empty())
    job->End({}, RunFailure{.text = job->cancel_reason, .cancelled = true});
  if (job->ended()) {
    Finish(job);
    return;
  }
  if (!job->causes.empty()) {
    Conclude(job->call, job->attempt);
    return;
  }
  // Ranks that made different numbers of collective calls cannot go on with that group.
  const auto& sequences = job->sequences;
  if (std::ranges::adjacent_find(sequences, std::not_equal_to<>()) != sequences.end())
    job->group->broken = true;
  if (job->noted) Note("done", -1, "", {{"call", static_cast<double>(job->call)}});
  job->End(std::move(job->gathered), std::nullopt);
  Finish(job);
}

void Controller::Finish(const std::shared_ptr<Job>& job) {
  if (jobs_.erase(job->call) == 0) return;
  busy_ -= job->spec.workers;
  Schedule();
}

void Controller::CancelJob(std::uint64_t call, const std::string& reason) {
  const auto job = FindJob(call);
  if (!job || job->ended()) return;
  job->cancel_reason = reason;
  Note("cancelled", -1, reason, {{"call", static_cast<double>(call)}});
  if (const auto waits = std::ranges::find(waiting_, job); waits != waiting_.end()) {
    job->End({}, RunFailure{.text = reason, .cancelled = true});
    waiting_.erase(waits);
    jobs_.erase(call);
    Schedule();
    return;
  }
  job->again = false;
  job->group->broken = true;
  CancelOthers(*job, reason);
}

// The first cause first: a death or an exception before an echo, then by time.
RunFailure Controller::Describe(const Job& job) const {
  std::vector<const Cause*> sorted;
  for (const Cause& cause : job.causes) sorted.push_back(&cause);
  std::ranges::stable_sort(sorted, [](const Cause* a, const Cause* b) {
    return std::pair(a->echo, a->time) < std::pair(b->echo, b->time);
  });
  const auto line = [](const Cause& cause) {
    const std::string who =
        fmt::format("rank {} ({}, process {})", cause.rank, cause.host, cause.pid);
    if (cause.died) {
      const bool left = cause.text.starts_with("left");
      return fmt::format("{} {}{}", who, cause.text, left ? " before its function returned" : "");
    }
    return fmt::format("{} raised {}: {}", who, cause.type, cause.text);
  };
  RunFailure failure;
  const Cause& first = *sorted.front();
  failure.rank = first.rank;
  failure.type = first.type;
  failure.traceback = first.traceback;
  failure.parcel = first.parcel;
  failure.text = line(first);
  if (!first.last_lines.empty()) failure.text += "; its last lines:\n" + first.last_lines;
  for (std::size_t i = 1; i < sorted.size(); ++i) failure.others.push_back(line(*sorted[i]));
  return failure;
}

void Controller::FailAll(const std::string& why) {
  for (const auto& [call, job] : jobs_) job->End({}, RunFailure{.text = why});
  jobs_.clear();
  waiting_.clear();
  workers_.clear();
  busy_ = 0;
}

// --- events

void Controller::Tell(Event event) {
  Note(event.kind == Event::Kind::kOutput ? "output" : "log", event.rank, event.text,
       event.kind == Event::Kind::kOutput ? std::map<std::string, double>{{"stream", event.stream}}
                                          : std::map<std::string, double>{{"level", event.level}});
  if (options_.prints) {
    Print(event);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (events_.size() >= kMaxEvents) {
    events_.pop_front();
    events_.front() = {.level = 30, .text = "some output of the workers was dropped here"};
  }
  events_.push_back(std::move(event));
  changed_.notify_all();
}

std::optional<Event> Controller::NextEvent(milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return !events_.empty() || stopped_; });
  if (events_.empty()) return std::nullopt;
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

// --- the public face

OnFailure ParseOnFailure(const std::string& text) {
  if (text == "raise") return OnFailure::kRaise;
  if (text == "restart") return OnFailure::kRestart;
  if (text == "shrink") return OnFailure::kShrink;
  throw Error(Code::kInvalidArgument,
              fmt::format("on_failure=\"{}\" is not known; give \"raise\", \"restart\" or "
                          "\"shrink\"",
                          text));
}

Context::Context(std::unique_ptr<Controller> controller) : controller_(std::move(controller)) {}
Context::~Context() = default;

std::unique_ptr<Context> Context::Start(const ContextOptions& options) {
  return std::unique_ptr<Context>(new Context(std::make_unique<Controller>(options)));
}
int Context::cores() const { return controller_->cores(); }
std::size_t Context::memory() const { return controller_->memory(); }
std::string Context::plan() const { return controller_->plan(); }
void Context::Prepare(const NurserySpec& spec) { controller_->Prepare(spec); }
std::shared_ptr<Run> Context::Submit(RunSpec spec) { return controller_->Submit(std::move(spec)); }
std::optional<Event> Context::NextEvent(milliseconds timeout) {
  return controller_->NextEvent(timeout);
}
void Context::PrintStacks() { controller_->PrintStacks(); }
void Context::Stop() { controller_->Stop(); }

}  // namespace orca::runtime
