// Calls: which workers run them, how they end, and who is to blame.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/mutant.h"
#include "runtime/controller.h"
#include "runtime/job.h"

namespace orca::runtime {
namespace {

using std::chrono::milliseconds;

// How long the causes of a failure are collected before the first of them is shown; an echo alone
// waits for its origin.
milliseconds Collect(const ContextOptions& options) { return options.silence / 25; }
milliseconds CollectEchoes(const ContextOptions& options) {
  return std::max(milliseconds(500), options.silence / 5);
}
constexpr milliseconds kNotedCalls(50);
// Ranks that still run so long after the first one has returned are told of it. Most end together.
constexpr milliseconds kTellReturned(50);
// F42: an attempt that ends sooner is short, and from the second short one in a row on the next
// waits, each twice as long as the one before.
constexpr milliseconds kShortAttempt(5000);
constexpr milliseconds kFirstBackOff(20);
constexpr milliseconds kLongestBackOff(1000);

}  // namespace

void Controller::Job::Cancel(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  controller_.loop_.Post([&controller = controller_, number = call, reason] {
    const std::lock_guard state(controller.state_mutex_);
    controller.CancelJob(number, reason);
  });
}

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
  if (const int most = kWorkersPerCore * cores(); spec.workers > most && !spec.oversubscribe)
    throw Error(Code::kInvalidArgument,
                fmt::format("{} workers are more than {} per core ({} core{}); give at most {}, or "
                            "oversubscribe=True if that many are to share the cores",
                            spec.workers, kWorkersPerCore, cores(), cores() == 1 ? "" : "s", most));
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
  const auto refused = refused_.find(job->spec.kind);
  if (!lost_.empty() || refused != refused_.end()) {
    job->End({}, RunFailure{.text = lost_.empty() ? refused->second : lost_});
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
  job->paces.clear();
  job->returned.clear();
  job->tells_returned = false;
  job->concluding = false;
  job->again = false;
  job->began = Loop::Clock::now();
  job->gathered.assign(world, {});
  job->shards.clear();
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
    worker.last_lines.clear();
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

// A rank that has ended stays with its call, which may yet begin anew.
bool Controller::IsHeld(std::uint64_t worker) const {
  return std::ranges::any_of(jobs_, [worker](const auto& entry) {
    const Job& job = *entry.second;
    return !job.ended() && std::ranges::find(job.members, worker) != job.members.end();
  });
}

// A call may have wanted more workers than there are cores; they stay warm for a while.
void Controller::LetGoOfIdle() {
  std::map<int, int> count;  // of each node
  for (const auto& [id, worker] : workers_) ++count[worker.node];
  std::vector<std::uint64_t> leaving;
  for (auto entry = workers_.rbegin(); entry != workers_.rend(); ++entry) {
    const auto& [id, worker] = *entry;
    const Node& node = *nodes_[static_cast<std::size_t>(worker.node)];
    const bool is_idle =
        worker.call == 0 && !IsHeld(id) && Loop::Clock::now() - worker.idle_since > options_.idle;
    if (!is_idle || node.lost || count[worker.node] <= node.cores) continue;
    --count[worker.node];
    leaving.push_back(id);
  }
  for (const std::uint64_t id : leaving) LetGo(id);
}

void Controller::LetGo(std::uint64_t id) {
  const Worker& worker = workers_.at(id);
  const Node& node = *nodes_[static_cast<std::size_t>(worker.node)];
  if (!node.lost) node.link->Send({.head = {{"op", "leave"}, {"worker", id}}});
  if (worker.group) worker.group->broken = true;
  workers_.erase(id);
}

// One of `kind` on `node` that is not among `taken`, the oldest first, or a new one.
std::uint64_t Controller::IdleWorker(const std::string& kind, int node,
                                     const std::vector<std::uint64_t>& taken) {
  for (const auto& [id, worker] : workers_) {
    const bool fits = worker.kind == kind && worker.node == node;
    const bool is_taken = std::ranges::find(taken, id) != taken.end();
    if (worker.call == 0 && fits && !is_taken && !IsHeld(id)) return id;
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

void Controller::HearDone(const Node& node, Message message) {
  auto shards = ResultShards(node, message.head);
  if (const auto why = message.head.find("error"); why != message.head.end()) {
    message.head["type"] = "ResourceExhaustedError";
    message.head["text"] = *why;
    HearFailed(std::move(message));
    return;
  }
  const auto job = FindJob(message.head.at("call").get<std::uint64_t>());
  const int rank = message.head.at("rank").get<int>();
  const auto worker = workers_.find(message.head.at("worker").get<std::uint64_t>());
  if (worker != workers_.end()) {
    worker->second.call = 0;
    worker->second.idle_since = Loop::Clock::now();
  }
  if (!job || !job->running.contains(rank)) return;
  job->gathered[static_cast<std::size_t>(rank)] = std::move(message.parcel);
  job->shards.insert(job->shards.end(), shards.begin(), shards.end());
  job->sequences[static_cast<std::size_t>(rank)] = message.head.at("sequence").get<std::uint64_t>();
  job->returned.push_back({{"op", "returned"},
                           {"call", job->call},
                           {"attempt", job->attempt},
                           {"rank", rank},
                           {"sequence", message.head.at("sequence")},
                           {"in_group", message.head.at("in_group")}});
  if (job->tells_returned) {
    TellReturned(*job);
  } else if (job->returned.size() == 1 && job->members.size() > 1) {
    loop_.At(Loop::Clock::now() + kTellReturned, [this, call = job->call, attempt = job->attempt] {
      const std::lock_guard lock(state_mutex_);
      const auto late = FindJob(call);
      if (!late || late->attempt != attempt || late->running.empty()) return;
      late->tells_returned = true;
      TellReturned(*late);
      WakeToSend();
    });
  }
  RankEnded(job, rank);
}

// A rank that waits for one that has returned would wait for as long as a collective may take.
void Controller::TellReturned(Job& job) {
  if (IsMutant("returned")) return;
  for (const Json& one : std::exchange(job.returned, {}))
    for (const auto& node : nodes_)
      if (!node->lost) node->link->Send({.head = one});
}

void Controller::HearFailed(Message message) {
  const Json& head = message.head;
  const auto job = FindJob(head.at("call").get<std::uint64_t>());
  const int rank = head.at("rank").get<int>();
  const auto worker = workers_.find(head.at("worker").get<std::uint64_t>());
  if (worker != workers_.end()) {
    worker->second.call = 0;
    worker->second.idle_since = Loop::Clock::now();
  }
  if (!job || !job->running.contains(rank)) return;
  AddCause(job, {.rank = rank,
                 .host = worker == workers_.end() ? "" : HostOf(worker->second),
                 .pid = worker == workers_.end() ? -1 : worker->second.pid,
                 .echo = head.value("echo", false),
                 .lost_peer = head.value("lost_peer", false),
                 .type = head.value("type", ""),
                 .text = head.value("text", ""),
                 .traceback = head.value("traceback", ""),
                 .parcel = std::move(message.parcel)});
  RankEnded(job, rank);
}

// Workers of a kind cannot do what the program wants: its calls end.
void Controller::RefuseKind(const std::string& kind, const std::string& why) {
  if (!refused_.emplace(kind, why).second) return;
  Note("refused", -1, why);
  std::vector<std::shared_ptr<Job>> ending;
  for (const auto& [call, job] : jobs_)
    if (job->spec.kind == kind) ending.push_back(job);
  for (const auto& job : ending) {
    job->End({}, RunFailure{.text = why});
    if (const auto waits = std::ranges::find(waiting_, job); waits != waiting_.end()) {
      waiting_.erase(waits);
      jobs_.erase(job->call);
    } else {
      CancelOthers(*job, why);
    }
  }
}

// F09: a rank that all others wait for is named, once a call.
void Controller::HearPace(const Json& head) {
  constexpr std::uint64_t kEnoughSteps = 10;
  constexpr double kMuch = 0.5;
  constexpr double kLittle = 0.2;
  const auto job = FindJob(head.at("call").get<std::uint64_t>());
  if (!job || job->told_pace || job->ended() || IsMutant("pace")) return;
  const Job::Pace now{.time = Loop::Clock::now(),
                      .sequence = head.at("sequence").get<std::uint64_t>(),
                      .waited = head.at("waited").get<double>()};
  job->paces.emplace(head.at("rank").get<int>(), std::pair(now, now)).first->second.second = now;
  if (job->paces.size() < job->members.size()) return;
  std::vector<std::pair<double, int>> shares;  // of its time that a rank waited
  double seconds = 0;
  for (const auto& [rank, pace] : job->paces) {
    const auto& [first, last] = pace;
    if (last.sequence < first.sequence + kEnoughSteps) return;
    seconds = std::chrono::duration<double>(last.time - first.time).count();
    shares.emplace_back((last.waited - first.waited) / seconds, rank);
  }
  std::ranges::sort(shares);
  const auto [least, slow] = shares[0];
  const double others = shares[1].first;
  if (others < kMuch || least > kLittle) return;
  const auto found = workers_.find(job->members[static_cast<std::size_t>(slow)]);
  if (found == workers_.end()) return;
  job->told_pace = true;
  const Worker& worker = found->second;
  Tell({.level = 30,
        .text = fmt::format("rank {} ({}, process {}) is slower than the others: of {:.1f} s they "
                            "waited {:.0f} % for it in collectives, it waited {:.0f} % for them; "
                            "look at what it does outside of them: its data, its computations, its "
                            "cores",
                            slow, HostOf(worker), worker.pid, seconds, 100 * others, 100 * least)});
}

void Controller::HearExited(Message message) {
  const Json& head = message.head;
  const auto id = head.at("worker").get<std::uint64_t>();
  const auto worker = workers_.find(id);
  if (worker == workers_.end()) return;
  WorkerLost(id, {.host = HostOf(worker->second),
                  .pid = head.at("pid").get<pid_t>(),
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
  if (!echo && !job->concluding) {
    job->concluding = true;
    ConcludeAfter(*job, job->running.size() > 1 ? Collect(options_) : milliseconds(0));
  } else if (echo && job->causes.size() == 1) {
    ConcludeAfter(*job, CollectEchoes(options_));
  }
}

void Controller::ConcludeAfter(const Job& job, milliseconds wait) {
  loop_.At(Loop::Clock::now() + wait, [this, call = job.call, attempt = job.attempt] {
    const std::lock_guard lock(state_mutex_);
    Conclude(call, attempt);
  });
}

// F11, F12: whether a rank still runs on a machine that has been silent for some beats. Ranks lose
// one another before this process gives a machine up, and that machine is to blame, not they.
bool Controller::AwaitsSilentNode(const Job& job) const {
  return std::ranges::any_of(job.running, [&](int rank) {
    const auto found = workers_.find(job.members[static_cast<std::size_t>(rank)]);
    if (found == workers_.end()) return false;
    const Node& node = *nodes_[static_cast<std::size_t>(found->second.node)];
    return !node.lost && Loop::Clock::now() - node.heard > options_.silence * 3 / 10;
  });
}

bool Controller::SpansNodes(const Job& job) const {
  std::set<int> nodes;
  for (const std::uint64_t id : job.members)
    if (const auto found = workers_.find(id); found != workers_.end())
      nodes.insert(found->second.node);
  return nodes.size() > 1;
}

// The causes are there: decide whether the call fails or begins anew.
void Controller::Conclude(std::uint64_t call, int attempt) {
  const auto job = FindJob(call);
  if (!job || job->attempt != attempt || job->again || job->ended()) return;
  if (!job->cancel_reason.empty()) return;  // it ends when all ranks have stopped
  const bool only_echoes = std::ranges::all_of(job->causes, &Cause::echo);
  if (only_echoes && AwaitsSilentNode(*job) && !IsMutant("silent-node")) {
    ConcludeAfter(*job, options_.silence / 5);
    return;
  }
  job->group->broken = true;
  const RunFailure failure = Describe(*job);
  const bool died = std::ranges::any_of(job->causes, [](const Cause& c) { return c.died; });
  const bool raised =
      std::ranges::any_of(job->causes, [](const Cause& c) { return !c.died && !c.echo; });
  const int dead =
      static_cast<int>(std::ranges::count_if(job->causes, [](const Cause& c) { return c.died; }));
  const bool can_shrink =
      job->spec.on_failure == OnFailure::kShrink && job->spec.workers - dead >= 1;
  const bool can_restart = job->spec.on_failure == OnFailure::kRestart &&
                           (job->restarts < job->spec.max_restarts || IsMutant("max-restarts"));
  // F10: all processes are there, but two machines lost each other.
  const bool cut = only_echoes && SpansNodes(*job) &&
                   std::ranges::any_of(job->causes, &Cause::lost_peer) && !IsMutant("cut");
  if (!raised && ((died && (can_shrink || can_restart)) || (cut && can_restart))) {
    ++job->restarts;
    job->again = true;
    if (can_shrink) {
      busy_ -= dead;
      job->spec.workers -= dead;
    }
    job->back_off = BackOff(*job);
    const double seconds = std::chrono::duration<double>(job->back_off).count();
    const std::string when = seconds > 0 ? fmt::format(" in {} s", seconds) : "";
    Tell({.level = 30,
          .text = fmt::format(
              "{}; {}", failure.text,
              can_shrink ? fmt::format("the other {} begin anew{}", job->spec.workers, when)
                         : fmt::format("all ranks begin anew{} (restart {} of {})", when,
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

milliseconds Controller::BackOff(Job& job) {
  const bool is_short = Loop::Clock::now() - job.began < kShortAttempt;
  job.short_attempts = is_short ? job.short_attempts + 1 : 0;
  if (job.short_attempts < 2 || IsMutant("back-off")) return milliseconds(0);
  const int doublings = std::min(job.short_attempts - 2, 10);
  return std::min(kFirstBackOff * (1 << doublings), kLongestBackOff);
}

void Controller::BeginLater(const std::shared_ptr<Job>& job) {
  ++job->attempt;
  if (job->back_off == milliseconds(0)) return Begin(job);
  job->waits = true;
  loop_.At(Loop::Clock::now() + job->back_off, [this, call = job->call, attempt = job->attempt] {
    const std::lock_guard lock(state_mutex_);
    const auto waiting = FindJob(call);
    if (!waiting || waiting->attempt != attempt || !waiting->waits) return;
    waiting->waits = false;
    if (waiting->ended()) return Finish(waiting);
    Begin(waiting);
    WakeToSend();
  });
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
    BeginLater(job);
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
  job->spec.shards.clear();
  for (const std::uint64_t id : job->members) {
    const auto member = workers_.find(id);
    if (job->spec.lets_go && member != workers_.end() && member->second.call == 0) LetGo(id);
  }
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
  if (job->waits) {  // Nobody runs it.
    job->End({}, RunFailure{.text = reason, .cancelled = true});
    Finish(job);
    return;
  }
  CancelOthers(*job, reason);
}

// The first cause first: a death or an exception before an echo; then as they came, since clocks of
// several machines differ, and may be set.
RunFailure Controller::Describe(const Job& job) const {
  std::vector<const Cause*> sorted;
  for (const Cause& cause : job.causes) sorted.push_back(&cause);
  std::ranges::stable_sort(sorted, {}, &Cause::echo);
  const auto line = [](const Cause& cause) {
    const std::string process = cause.pid > 0 ? fmt::format(", process {}", cause.pid) : "";
    const std::string who = fmt::format("rank {} ({}{})", cause.rank, cause.host, process);
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
  // F15: it waited for somebody; who has not ended may be the one that did not come.
  for (const int rank : job.running) {
    if (!first.echo) break;
    const auto found = workers_.find(job.members[static_cast<std::size_t>(rank)]);
    if (found == workers_.end()) continue;
    const Worker& worker = found->second;
    failure.text +=
        fmt::format("; rank {} ({}, process {}) still runs", rank, HostOf(worker), worker.pid);
    if (worker.last_lines.empty()) continue;
    failure.text += fmt::format(" and printed last:\n{}", fmt::join(worker.last_lines, "\n"));
  }
  return failure;
}

void Controller::FailAll(const std::string& why) {
  for (const auto& [call, job] : jobs_) job->End({}, RunFailure{.text = why});
  jobs_.clear();
  waiting_.clear();
  workers_.clear();
  busy_ = 0;
}

}  // namespace orca::runtime
