#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/log.h"
#include "orca/core/mutant.h"
#include "orca/net/handshake.h"
#include "orca/net/socket.h"
#include "orca/runtime/agent.h"
#include "orca/runtime/worker.h"
#include "runtime/agent.h"

namespace orca::runtime {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kLastLines = 20;
constexpr std::size_t kLongestLine = std::size_t{16} << 10;
// More than this unsent, and the workers' outputs wait in their pipes.
constexpr std::size_t kDriverBacklog = std::size_t{4} << 20;
constexpr std::size_t kBirthsPerCore = 4;  // at a time: more would only take longer
constexpr milliseconds kStatusWait(500);
// Calls that run at once must not meet at the same one.
constexpr std::size_t kMasters = 16;
constexpr std::chrono::seconds kJoinTimeout(60);

int Cores() {
  return std::max(1, std::min(static_cast<int>(AllowedCpus().count()), CgroupCpuLimit()));
}

// The address of this end of `socket` with ports that are free now.
std::vector<std::string> FreeAddresses(int socket, bool is_unix) {
  std::string host = "127.0.0.1";
  sockaddr_storage mine{};
  socklen_t length = sizeof mine;
  std::array<char, NI_MAXHOST> text{};
  if (!is_unix && ::getsockname(socket, reinterpret_cast<sockaddr*>(&mine), &length) == 0 &&
      ::getnameinfo(reinterpret_cast<sockaddr*>(&mine), length, text.data(), text.size(), nullptr,
                    0, NI_NUMERICHOST) == 0) {
    host = mine.ss_family == AF_INET6 ? fmt::format("[{}]", text.data()) : text.data();
  }
  std::vector<std::string> bound(kMasters);
  std::vector<UniqueFd> listeners;  // all at once, so that all differ
  for (std::string& address : bound) listeners.push_back(net::ListenTcp(host + ":0", &address));
  return bound;
}

// A driver that listens everywhere says so; this node knows where it was reached.
std::string Reachable(const std::string& address, const std::string& driver_host) {
  const std::size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  const bool everywhere = host == "0.0.0.0" || host == "[::]";
  return everywhere && !driver_host.empty() ? driver_host + address.substr(colon) : address;
}

}  // namespace

Agent::Agent(std::unique_ptr<Link> driver, std::string host)
    : driver_(std::move(driver)),
      driver_host_(std::move(host)),
      driver_heard_(Clock::now()),
      shards_([this](NodeShards::Holder to, Message message) { SendTo(to, std::move(message)); }),
      guests_(loop_, shards_, [this](Message question) { driver_->Send(std::move(question)); }),
      most_births_(kBirthsPerCore * static_cast<std::size_t>(Cores())),
      oom_kills_(OomKills()) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  RaiseDescriptorLimit();  // every shard takes one
  sigset_t watched;
  sigemptyset(&watched);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&watched, signal);
  ::sigprocmask(SIG_BLOCK, &watched, nullptr);
  signals_ = UniqueFd(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) throw Error(Code::kResourceExhausted, DescribeLimitError(errno));
  loop_.Watch(signals_.get(), [this] { Reap(); });
  loop_.Watch(
      driver_->fd(),
      [this] { return static_cast<short>(driver_->wants_write() ? POLLIN | POLLOUT : POLLIN); },
      [this](short) { HandleDriver(); });
}

Agent::~Agent() { EndAll(); }

void Agent::EndWith(pid_t process) {
  process_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
  if (!process_) return;  // an old kernel: the link has to do
  loop_.Watch(process_.get(), [this] {
    loop_.Forget(process_.get());
    if (!IsMutant("driver-gone")) loop_.Stop();
  });
}

void Agent::Run() {
  driver_->Send({.head = {{"op", "hello"},
                          {"host", HostName()},
                          {"pid", ::getpid()},
                          {"cores", Cores()},
                          {"masters", FreeAddresses(driver_->fd(), driver_host_.empty())},
                          {"version", ORCA_VERSION}}});
  WatchForSilence();
  loop_.Run();
  EndAll();
}

// --- the driver

void Agent::HandleDriver() {
  driver_heard_ = Clock::now();  // a long message comes in pieces
  try {
    driver_->Flush();
    while (auto message = driver_->Receive()) {
      Obey(std::move(*message));
    }
  } catch (const Error& error) {
    if (error.code() != Code::kPeerLost && error.code() != Code::kUnauthenticated) throw;
    loop_.Forget(driver_->fd());
    if (!IsMutant("driver-gone")) loop_.Stop();
  }
}

void Agent::Obey(Message message) {
  if (shards_.Handle(NodeShards::kDriver, message)) return;
  const std::string op = message.head.value("op", "");
  if (op == "settings") {
    silence_ = milliseconds(message.head.at("silence").get<int>());
    grace_ = milliseconds(message.head.at("grace").get<int>());
    shards_.Settle(message.head.at("node").get<int>(),
                   message.head.at("shard_memory").get<std::size_t>());
  } else if (op == "nursery") {
    const auto kind = message.head.at("kind").get<std::string>();
    if (nurseries_.contains(kind)) return;
    Nursery& nursery = nurseries_[kind];
    nursery.kind = kind;
    nursery.program = {
        .command = message.head.at("command").get<std::vector<std::string>>(),
        .environment = message.head.at("environment").get<std::map<std::string, std::string>>(),
        .directory = message.head.at("directory").get<std::string>()};
    StartNursery(nursery);
  } else if (op == "call") {
    Call(std::move(message));
  } else if (op == "cancel") {
    CancelCall(message.head.at("call").get<std::uint64_t>(),
               message.head.at("reason").get<std::string>());
  } else if (op == "returned") {
    for (auto& [id, worker] : workers_)
      if (worker.call == message.head.at("call").get<std::uint64_t>() && worker.link)
        worker.link->Send({.head = message.head});
  } else if (op == "leave") {
    const auto found = workers_.find(message.head.at("worker").get<std::uint64_t>());
    if (found != workers_.end() && found->second.link)
      found->second.link->Send({.head = {{"op", "leave"}}});
  } else if (op == "answer") {
    guests_.Answer(std::move(message));
  } else if (op == "door") {
    const auto secret = net::Secret::FromHex(message.head.at("secret").get<std::string>());
    driver_->Send({.head = {{"op", "granted"},
                            {"ticket", message.head.at("ticket")},
                            {"name", guests_.Open(secret)}}});
  } else if (op == "stacks") {
    for (const auto& [id, worker] : workers_)
      if (worker.call != 0 && worker.pid > 0) ::kill(worker.pid, kStackSignal);
  } else if (op == "stop") {
    stopping_ = true;
    loop_.Stop();
  }
}

void Agent::Call(Message message) {
  const Json& head = message.head;
  const auto call = head.at("call").get<std::uint64_t>();
  const auto kind = head.at("kind").get<std::string>();
  const auto& members = head.at("members");  // [[rank, worker], ...] of this node
  const int local_world = static_cast<int>(members.size());
  const int threads = head.at("threads").get<int>();
  for (int local_rank = 0; local_rank < local_world; ++local_rank) {
    const auto rank = members[static_cast<std::size_t>(local_rank)][0].get<int>();
    const auto id = members[static_cast<std::size_t>(local_rank)][1].get<std::uint64_t>();
    const auto found = workers_.find(id);
    const bool is_new = found == workers_.end();
    Worker& worker = is_new ? workers_[id] : found->second;
    worker.id = id;
    worker.kind = kind;
    worker.call = call;
    worker.rank = rank;
    Json task = {{"op", "task"},
                 {"call", call},
                 {"rank", rank},
                 {"world", head.at("world")},
                 {"local_rank", local_rank},
                 {"local_world", local_world},
                 {"node", head.at("node")},
                 {"attempt", head.at("attempt")},
                 {"threads", threads},
                 {"cpus", head.at("pin").get<bool>() ? CpusOf(local_rank, local_world, threads)
                                                     : std::vector<int>{}},
                 {"group", head.at("group")},
                 {"generation", head.at("generation")},
                 {"master", head.at("master")},
                 {"store", Reachable(head.at("store").get<std::string>(), driver_host_)},
                 {"secret", head.at("secret")}};
    worker.task = std::move(task);
    worker.parcel = message.parcel;
    if (const auto why = head.find("error"); why != head.end()) {
      worker.call = 0;
      driver_->Send({.head = {{"op", "failed"},
                              {"call", call},
                              {"rank", rank},
                              {"worker", id},
                              {"type", "ResourceExhaustedError"},
                              {"text", *why}}});
    }
    if (is_new) {
      Bear(worker);
    } else if (worker.link && worker.call != 0) {
      worker.link->Send({.head = worker.task, .parcel = worker.parcel});
    }
  }
}

// A block of the allowed processors for each local rank.
std::vector<int> Agent::CpusOf(int local_rank, int local_world, int threads) const {
  std::vector<int> allowed;
  const CpuSet set = AllowedCpus();
  for (std::size_t cpu = 0; cpu < set.size(); ++cpu)
    if (set.test(cpu)) allowed.push_back(static_cast<int>(cpu));
  if (static_cast<int>(allowed.size()) != local_world * threads) return {};
  const auto begin = allowed.begin() + static_cast<std::ptrdiff_t>(local_rank) * threads;
  return {begin, begin + threads};
}

void Agent::CancelCall(std::uint64_t call, const std::string& reason) {
  std::vector<std::uint64_t> waiting;  // no nursery was asked for them yet
  for (auto& [id, worker] : workers_) {
    if (worker.call != call) continue;
    if (!worker.link) {
      waiting.push_back(id);
      continue;
    }
    worker.link->Send({.head = {{"op", "cancel"}, {"call", call}, {"reason", reason}}});
    loop_.At(Clock::now() + grace_, [this, id = id, call] {
      const auto found = workers_.find(id);
      if (found == workers_.end() || found->second.call != call) return;
      KillWorker(found->second, "did not stop when its call was cancelled, and was killed");
    });
  }
  for (const std::uint64_t id : waiting)
    WorkerDied(id, "was not started, because its call was cancelled");
}

// --- workers

void Agent::HandleWorker(std::uint64_t id) {
  Worker& worker = workers_.at(id);
  try {
    worker.link->Flush();
    while (auto message = worker.link->Receive()) {
      worker.heard = Clock::now();
      EndBirth(id);
      const std::string op = message->head.value("op", "");
      if (op == "beat" || shards_.Handle(id, *message)) continue;
      shards_.HoldResults(*message);
      message->head["worker"] = id;
      message->head["rank"] = worker.rank;
      if (op == "done" || op == "failed") {
        // What it printed comes before what it returned.
        DrainPipes(worker);
        worker.call = 0;
        worker.parcel = {};
      }
      driver_->Send(std::move(*message));
    }
  } catch (const Error& error) {
    if (error.code() != Code::kPeerLost) throw;
    LoseLink(worker);
  }
}

// It is dead, or about to be. Its status comes from whoever reaps it, or never.
void Agent::LoseLink(Worker& worker) {
  if (worker.link_lost) return;
  worker.link_lost = true;
  loop_.Forget(worker.link->fd());
  AwaitStatus(worker);
}

void Agent::AwaitStatus(const Worker& worker) {
  loop_.At(Clock::now() + kStatusWait, [this, id = worker.id, births = worker.births] {
    const auto found = workers_.find(id);
    if (found == workers_.end() || found->second.births != births) return;
    // Not born yet: its nursery forks it, or says at its own end why it did not.
    if (found->second.pid <= 0) return AwaitStatus(found->second);
    ::kill(-found->second.pid, SIGKILL);
    WorkerDied(id, "closed its connection and was killed");
  });
}

void Agent::KillWorker(Worker& worker, const std::string& fate) {
  if (worker.fate.empty()) worker.fate = fate;
  if (worker.pid > 0) ::kill(-worker.pid, SIGKILL);
}

void Agent::WorkerDied(std::uint64_t id, const std::string& how, std::size_t peak) {
  const auto found = workers_.find(id);
  if (found == workers_.end()) return;
  Worker& worker = found->second;
  if (worker.pid > 0) ::kill(-worker.pid, SIGKILL);  // its children, if it left any
  // Its last words may still be in the link and the pipes.
  if (worker.link && !worker.link_lost) HandleWorker(id);
  DrainPipes(worker);
  std::string last;
  for (const std::string& line : worker.last_lines)
    if (!IsMutant("last-lines")) last += line + "\n";
  std::string text = worker.fate.empty() ? how : worker.fate;
  const long oom_kills = OomKills();
  if (worker.fate.empty() && oom_kills > oom_kills_ && how.find("SIGKILL") != std::string::npos &&
      !IsMutant("oom"))
    text += fmt::format(
        " by the kernel, because memory ran out ({}); it had taken {}, all shards "
        "of this machine take {}",
        AvailableMemory().limit, HumanBytes(peak), HumanBytes(shards_.held()));
  oom_kills_ = oom_kills;
  driver_->Send({.head = {{"op", "exited"},
                          {"worker", id},
                          {"pid", worker.pid},
                          {"rank", worker.rank},
                          {"call", worker.call},
                          {"how", text},
                          {"last", Shortened(last, 4096)}}});
  CloseWorker(worker);
  workers_.erase(found);
  EndBirth(id);
  shards_.HolderGone(id);
  KillOrphans();
}

void Agent::SendTo(NodeShards::Holder holder, Message message) {
  if (holder == NodeShards::kDriver) {
    driver_->Send(std::move(message));
  } else if (holder > NodeShards::kFirstGuest) {
    guests_.Send(holder, std::move(message));
  } else if (const auto found = workers_.find(holder); found != workers_.end()) {
    found->second.link->Send(std::move(message));
  }
}

void Agent::CloseWorker(Worker& worker) {
  if (worker.link && !worker.link_lost) loop_.Forget(worker.link->fd());
  for (Pipe& pipe : worker.pipes) {
    if (pipe.fd) loop_.Forget(pipe.fd.get());
    pipe.fd.Reset();
  }
}

void Agent::WatchForSilence() {
  const auto now = Clock::now();
  // If this process itself did not run, silence says nothing about the others.
  if (now - last_watch_ > silence_ * 3 / 4) {
    driver_heard_ = now;
    for (auto& [id, worker] : workers_) worker.heard = now;
  }
  last_watch_ = now;
  driver_->Send({.head = {{"op", "beat"}}});
  if (!driver_host_.empty()) {
    // Only who reaches the driver goes on. A driver on this machine may be stopped in a debugger.
    if (now - driver_heard_ > 2 * silence_) {
      Log(LogLevel::kError,
          fmt::format("the driver at {} is silent; this agent stops", driver_host_));
      loop_.Stop();
      return;
    }
  }
  for (auto& [id, worker] : workers_) {
    if (worker.pid <= 0 || now - worker.heard < silence_ || worker.killed_for_silence) continue;
    if (IsMutant("silence")) continue;
    worker.killed_for_silence = true;
    const double seconds = std::chrono::duration<double>(now - worker.heard).count();
    KillWorker(worker, fmt::format("gave no sign of life for {:.1f} s (the process was {}) and was "
                                   "killed",
                                   seconds, ProcessState(worker.pid)));
  }
  // A nursery that does not fork is stopped or stuck; another takes its place and what it owes.
  for (const auto& [kind, nursery] : nurseries_) {
    if (!nursery.ready || nursery.unborn.empty()) continue;
    const auto owed = workers_.find(nursery.unborn.front());
    if (owed != workers_.end() && now - owed->second.heard >= silence_)
      ::kill(nursery.pid, SIGKILL);
  }
  shards_.GiveBack();
  loop_.At(now + silence_ / 10, [this] { WatchForSilence(); });
}

// --- processes that end

void Agent::Reap() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo != SIGCHLD) {
      stopping_ = true;
      loop_.Stop();
    }
  }
  int status = 0;
  rusage used{};
  for (pid_t pid = 0; (pid = ::wait4(-1, &status, WNOHANG, &used)) > 0;)
    HandleExit(pid, status, std::size_t{1024} * static_cast<std::size_t>(used.ru_maxrss));
}

void Agent::HandleExit(pid_t pid, int status, std::size_t peak) {
  for (auto& [kind, nursery] : nurseries_) {
    if (nursery.pid != pid) continue;
    NurseryDied(nursery, status);
    return;
  }
  for (auto& [id, worker] : workers_) {
    if (worker.pid != pid) continue;
    if (status == 0 && IsMutant("exit-zero")) return;
    WorkerDied(id, DescribeExit(status), peak);
    return;
  }
}

// What a worker's own children leave behind comes to this process, as the nearest that adopts.
void Agent::KillOrphans() {
  for (const pid_t pid : Children()) {
    const bool is_nursery = std::ranges::any_of(nurseries_, [pid](const auto& entry) {
      return entry.second.pid == pid || entry.second.spare_pid == pid;
    });
    const bool is_worker =
        std::ranges::any_of(workers_, [pid](const auto& entry) { return entry.second.pid == pid; });
    if (!is_nursery && !is_worker) ::kill(pid, SIGKILL);
  }
}

void Agent::EndAll() {
  stopping_ = true;
  for (auto& [id, worker] : workers_)
    if (worker.pid > 0) ::kill(-worker.pid, SIGKILL);
  for (auto& [kind, nursery] : nurseries_)
    for (const pid_t pid : {nursery.pid, nursery.spare_pid})
      if (pid > 0) ::kill(pid, SIGKILL);
  // Until nobody is left: those that were just being born come to this process, too.
  const Deadline deadline = Deadline::After(std::chrono::seconds(2));
  while (!deadline.Passed()) {
    const auto children = Children();
    if (children.empty()) break;
    for (const pid_t pid : children) ::kill(pid, SIGKILL);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  workers_.clear();
  nurseries_.clear();
}

// --- what processes print

void Agent::WatchPipe(Pipe& pipe, int stream, std::function<Worker*()> owner, std::string kind) {
  Pipe* const watched = &pipe;
  loop_.Watch(
      pipe.fd.get(),
      [this] { return static_cast<short>(driver_->queued() > kDriverBacklog ? 0 : POLLIN); },
      [this, watched, stream, owner = std::move(owner), kind = std::move(kind)](short) {
        ReadPipe(*watched, stream, owner(), kind);
      });
}

// All that is there now; a child of the worker may go on writing for ever.
void Agent::DrainPipes(Worker& worker) {
  constexpr int kMostReads = 64;
  for (int stream = 0; stream <= kStacks; ++stream) {
    Pipe& pipe = worker.pipes[stream];
    for (int i = 0; i < kMostReads && pipe.fd; ++i)
      if (!ReadPipe(pipe, stream, &worker, worker.kind)) break;
    // The next line is of another call.
    if (!pipe.unfinished.empty())
      TellOutput(&worker, worker.kind, stream, std::exchange(pipe.unfinished, {}));
  }
}

// Whether there may be more.
bool Agent::ReadPipe(Pipe& pipe, int stream, Worker* worker, const std::string& kind) {
  std::array<char, 16384> buffer;
  std::string text = std::exchange(pipe.unfinished, {});
  bool ended = false;
  bool full = false;
  for (;;) {
    const ssize_t got = ::read(pipe.fd.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    ended = got == 0;
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
    full = text.size() >= buffer.size();
    if (full) break;
  }
  // Whole lines, unless one is very long or the process has ended.
  const std::size_t end = text.rfind('\n');
  if (!ended && (end != std::string::npos || text.size() < kLongestLine)) {
    const std::size_t whole = end == std::string::npos ? 0 : end + 1;
    pipe.unfinished = text.substr(whole);
    text.resize(whole);
  }
  if (!text.empty()) TellOutput(worker, kind, stream, std::move(text));
  if (!ended) return full;
  loop_.Forget(pipe.fd.get());
  pipe.fd.Reset();
  return false;
}

void Agent::TellOutput(const Worker* worker, const std::string& kind, int stream,
                       std::string text) {
  if (stream == kStacks) {
    if (worker != nullptr)
      driver_->Send({.head = {{"op", "stack"}, {"rank", worker->rank}, {"text", std::move(text)}}});
    return;
  }
  {
    auto& lines =
        worker != nullptr ? workers_.at(worker->id).last_lines : nurseries_.at(kind).last_lines;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      lines.push_back(text.substr(at, end - at));
      if (lines.size() > kLastLines) lines.pop_front();
      at = end + 1;
    }
  }
  driver_->Send({.head = {{"op", "output"},
                          {"kind", kind},
                          {"worker", worker == nullptr ? 0 : worker->id},
                          {"rank", worker == nullptr ? -1 : worker->rank},
                          {"stream", stream},
                          {"text", std::move(text)}}});
}

void RunAgent(UniqueFd driver) {
  Agent agent(std::make_unique<UnixLink>(std::move(driver)), "");
  agent.EndWith(::getppid());
  agent.Run();
}

void JoinAsAgent(const std::string& address, const std::string& secret_file) {
  const net::Secret secret = net::Secret::FromFile(secret_file);
  const Deadline deadline = Deadline::After(kJoinTimeout);
  UniqueFd socket = net::ConnectTcp(std::span(&address, 1), deadline);
  const net::Hello hello{.job = net::HashName("orca"), .role = kAgentRole};
  const net::SessionKeys keys = net::ConnectHandshake(socket.get(), secret, hello, deadline);
  Log(LogLevel::kInfo, fmt::format("joined the driver at {}", address));
  Agent(std::make_unique<TcpLink>(std::move(socket), keys, net::SealedChannel::Side::kClient),
        address.substr(0, address.rfind(':')))
      .Run();
}

}  // namespace orca::runtime
