// Agents and the thread that talks to them. Calls are in controller_calls.cc.
#include <dlfcn.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <sstream>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/log.h"
#include "orca/core/mutant.h"
#include "orca/net/handshake.h"
#include "orca/net/socket.h"
#include "orca/runtime/agent.h"
#include "runtime/controller.h"
#include "runtime/job.h"
#include "runtime/process.h"

namespace orca::runtime {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStopWait(5000);
constexpr milliseconds kJoinReport(10'000);
constexpr milliseconds kStackTime(1500);  // for workers to print theirs
constexpr std::size_t kMaxEvents = 100'000;
constexpr std::size_t kLastLines = 3;

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

// What a rank has printed, with the rank before each line.
std::string WithRank(const Event& event) {
  std::string text;
  for (std::size_t at = 0; at < event.text.size();) {
    const std::size_t end = std::min(event.text.find('\n', at), event.text.size());
    if (event.rank >= 0) text += fmt::format("[rank {}] ", event.rank);
    text += event.text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return text;
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
  const std::string text = WithRank(event);
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
  OpenShards();
  if (options.nodes > 0) {
    ListenForAgents();
  } else {
    StartAgent();
  }
  WatchForSilence();
  thread_ = std::make_shared<LoopThread>(loop_, "orca-driver", [this](const std::exception& error) {
    const std::lock_guard lock(state_mutex_);
    lost_ = std::string("the driver cannot go on: ") + error.what();
    FailAll(lost_);
    home_->Fail(lost_);
    const std::lock_guard waiting(mutex_);
    join_error_ = lost_;
    changed_.notify_all();
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
                              {"grace", options_.grace.count()},
                              {"node", added->index},
                              {"shard_memory", added->remote ? 0 : options_.memory}}});
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
    if (thread_) thread_->Join();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    changed_.notify_all();
  }
  home_->Fail("the context was stopped");
  if (thread_) {
    loop_.Post([this] {
      const std::lock_guard lock(state_mutex_);
      FailAll("the context was stopped");
      for (const auto& node : nodes_) node->link->Send({.head = {{"op", "stop"}}});
    });
    loop_.Stop();
    thread_->Join();
  }
  home_->Close("the context was stopped");
  ReapAgents();
  store_.reset();
  visitors_.Reset();
  Note("stopped", -1, "");
  log_.reset();
  std::error_code gone;
  if (!door_.secret_file.empty()) std::filesystem::remove(door_.secret_file, gone);
}

// An agent whose connection is closed stops, whatever it is at.
void Controller::ReapAgents() {
  const Deadline deadline = Deadline::After(kStopWait);
  const Deadline last_chance = Deadline::After(2 * kStopWait);
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
      if (deadline.Passed()) ::kill(pid, SIGKILL);
      // One that the kernel does not let go is left to whoever adopts it.
      if (last_chance.Passed()) break;
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
}

// A process of the same user that connects gets the stacks that come within kStackTime.
void Controller::AnswerVisitors() {
  while (UniqueFd visitor = net::Accept(visitors_.get())) {
    try {
      net::CheckPeerUser(visitor.get());
    } catch (const Error& error) {
      Log(LogLevel::kWarning, error.what());
      continue;
    }
    const std::lock_guard lock(state_mutex_);
    visits_.push_back(std::move(visitor));
    loop_.At(Loop::Clock::now() + kStackTime, [this] {
      const std::lock_guard again(state_mutex_);
      visits_.erase(visits_.begin());
    });
    AskForStacks();
    WakeToSend();
  }
}

void Controller::PrintStacks() {
  const std::lock_guard lock(state_mutex_);
  SendStacks();
  WakeToSend();
}

void Controller::SendStacks() {
  prints_stacks_until_ = Loop::Clock::now() + kStackTime;
  AskForStacks();
}

void Controller::HearStack(const Json& head) {
  const Event event{.kind = Event::Kind::kOutput,
                    .rank = head.at("rank").get<int>(),
                    .stream = 1,
                    .text = head.at("text").get<std::string>()};
  const std::string text = WithRank(event);
  for (const UniqueFd& visitor : visits_)
    ::send(visitor.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (Loop::Clock::now() < prints_stacks_until_) Tell(event);
}

void Controller::AskForStacks() {
  for (const auto& node : nodes_)
    if (!node->lost) node->link->Send({.head = {{"op", "stacks"}}});
}

// A run without a log is better than none.
void Controller::OpenLog() {
  try {
    folder_ = NewRunFolder(id_).path;
    log_ = EventLog::Create(folder_ / "events.log");
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
  node.heard = Loop::Clock::now();  // a long message comes in pieces
  try {
    node.link->Flush();
    while (auto message = node.link->Receive()) {
      Hear(node, std::move(*message));
    }
  } catch (const std::exception& error) {  // also of a message that lacks something
    AgentLost(node, error.what());
  }
}

// Its workers are gone, or will be before anybody listens to them again.
void Controller::AgentLost(Node& node, const std::string& why, bool killed) {
  if (node.lost) return;
  node.lost = true;
  loop_.Forget(node.link->fd());
  std::string how = why;
  // What does not end now is waited for when the context stops.
  for (int tries = 0; node.pid > 0 && tries < 100; ++tries) {
    int status = 0;
    if (::waitpid(node.pid, &status, WNOHANG) == node.pid) {
      if (!killed) how = "it " + DescribeExit(status);
      node.pid = -1;
    } else {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  const std::string text = fmt::format("the agent of node {} ({}) is lost: {}", node.index,
                                       node.host.empty() ? "unknown" : node.host, how);
  Note("agent lost", -1, text);
  if (own_shards_) {
    FailFetches(node.index, text);
  } else {
    home_->Fail(text);
  }
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
                    .died = true,
                    .text = "was lost with its node: " + text});
  }
}

void Controller::WatchForSilence() {
  const auto now = Loop::Clock::now();
  // If this thread itself did not run, silence says nothing about the others.
  const bool slept = now - last_watch_ > options_.silence;
  last_watch_ = now;
  LetGoOfIdle();
  if (own_shards_) own_shards_->GiveBack();
  for (const auto& node : nodes_) {
    if (node->lost) continue;
    if (node->remote) node->link->Send({.head = {{"op", "beat"}}});
    if (slept) node->heard = now;
    if (now - node->heard <= 2 * options_.silence) continue;
    std::string how = fmt::format("it gave no sign of life for {:.1f} s",
                                  std::chrono::duration<double>(now - node->heard).count());
    if (node->pid > 0) {
      how += fmt::format(" (the process was {}) and was killed", ProcessState(node->pid));
      ::kill(node->pid, SIGKILL);
    }
    AgentLost(*node, how, true);
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

void Controller::NoteStep(const Json& step, int rank) {
  auto numbers = step.at("metrics").get<std::map<std::string, double>>();
  numbers["step"] = step.at("step").get<double>();
  Note("step", rank, "", std::move(numbers));
}

void Controller::Hear(Node& node, Message message) {
  if (HearAboutShards(node, message)) return;
  const std::string op = message.head.value("op", "");
  if (const auto step = message.head.find("last_step"); step != message.head.end())
    NoteStep(*step, message.head.at("rank").get<int>());
  if (op == "done") {
    HearDone(node, std::move(message));
  } else if (op == "failed") {
    HearFailed(std::move(message));
  } else if (op == "exited") {
    HearExited(std::move(message));
  } else if (op == "output") {
    HearOutput(message.head);
  } else if (op == "stack") {
    HearStack(message.head);
  } else if (op == "step") {
    NoteStep(message.head, message.head.at("rank").get<int>());
  } else if (op == "pace") {
    HearPace(message.head);
  } else if (op == "log") {
    Tell({.kind = Event::Kind::kLog,
          .rank = message.head.at("rank").get<int>(),
          .level = message.head.at("level").get<int>(),
          .logger = message.head.at("logger").get<std::string>(),
          .text = message.head.at("text").get<std::string>()});
  } else if (op == "notice") {
    Tell({.level = 30, .text = message.head.at("text").get<std::string>()});
  } else if (op == "waits") {
    Tell({.kind = Event::Kind::kLog,
          .rank = message.head.at("rank").get<int>(),
          .level = 30,
          .text = message.head.at("text").get<std::string>()});
    if (message.head.at("stalled").get<bool>()) SendStacks();
  } else if (op == "started") {
    const auto found = workers_.find(message.head.at("worker").get<std::uint64_t>());
    if (found == workers_.end()) return;
    found->second.pid = message.head.at("pid").get<pid_t>();
    Note("worker", found->second.rank, found->second.kind,
         {{"worker", static_cast<double>(found->first)}, {"pid", found->second.pid}});
  } else if (op == "nursery") {
    HearNursery(node, message.head);
  } else if (op == "question") {
    const std::lock_guard lock(mutex_);
    questions_.push_back({.guest = message.head.at("guest").get<std::uint64_t>(),
                          .ticket = message.head.at("ticket").get<std::uint64_t>(),
                          .parcel = std::move(message.parcel)});
    changed_.notify_all();
  } else if (op == "hello") {
    HearHello(node, message.head);
  }
}

void Controller::HearNursery(const Node& node, const Json& head) {
  const auto kind = head.at("kind").get<std::string>();
  const int threads = head.at("threads").get<int>();
  if (threads > 1)
    Tell({.text = fmt::format("the nursery {} has {} threads; a fork there may hang: set "
                              "OMP_NUM_THREADS=1 and import less before orca",
                              kind, threads)});
  for (const auto& [name, wanted] : nurseries_.at(kind).versions) {
    const std::string has = head.at("versions").value(name, "none");
    if (has != wanted && !IsMutant("versions"))
      RefuseKind(kind, fmt::format("the workers on {} have {} {}, this program has {}; install the "
                                   "same on both",
                                   node.host, name, has, wanted));
  }
}

void Controller::HearOutput(const Json& head) {
  const auto text = head.at("text").get<std::string>();
  const auto worker = workers_.find(head.at("worker").get<std::uint64_t>());
  if (worker != workers_.end()) {
    auto& lines = worker->second.last_lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
      lines.push_back(Shortened(line, 200));
      if (lines.size() > kLastLines) lines.pop_front();
    }
  }
  Tell({.kind = Event::Kind::kOutput,
        .rank = head.at("rank").get<int>(),
        .stream = head.at("stream").get<int>(),
        .text = text});
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

}  // namespace orca::runtime
