#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <string_view>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/log.h"
#include "orca/core/mutant.h"
#include "orca/runtime/worker.h"
#include "runtime/agent_home.h"
#include "runtime/link.h"
#include "runtime/loop.h"
#include "runtime/node_shards.h"

namespace orca::runtime {
namespace {

// A rank that waits in a collective for so long is stuck with high probability; the stacks of all
// ranks are printed. Scaled with the time after which waits are reported (5 s by default).
std::chrono::milliseconds StallAfter(const comm::CommOptions& options) {
  return options.warn_after * 5;
}

/// How the ranks of a task meet.
struct Meeting {
  std::string group;
  std::uint64_t generation = 0;
  std::string store;
  std::string secret;
  bool operator==(const Meeting&) const = default;
};

struct Received {
  Task task;
  Meeting meeting;
};

Received ReadTask(Message message) {
  const Json& head = message.head;
  Received received;
  Task& task = received.task;
  task.call = head.at("call").get<std::uint64_t>();
  task.rank = head.at("rank").get<int>();
  task.world = head.at("world").get<int>();
  task.local_rank = head.at("local_rank").get<int>();
  task.local_world = head.at("local_world").get<int>();
  task.node = head.at("node").get<int>();
  task.attempt = head.at("attempt").get<int>();
  task.master = head.at("master").get<std::string>();
  task.threads = head.at("threads").get<int>();
  task.cpus = head.at("cpus").get<std::vector<int>>();
  task.parcel = std::move(message.parcel);
  received.meeting = {.group = head.at("group").get<std::string>(),
                      .generation = head.at("generation").get<std::uint64_t>(),
                      .store = head.at("store").get<std::string>(),
                      .secret = head.at("secret").get<std::string>()};
  return received;
}

/// A store whose waits end when `check` throws: a rank that will never come is not waited for.
class CancellableStore final : public comm::Store {
 public:
  CancellableStore(std::shared_ptr<comm::Store> store, std::function<void()> check)
      : store_(std::move(store)), check_(std::move(check)) {}

  void Set(const std::string& key, const std::string& value) override { store_->Set(key, value); }

  std::string Get(const std::string& key, std::chrono::milliseconds timeout) override {
    constexpr std::chrono::milliseconds kLook(20);
    const Deadline deadline = Deadline::After(timeout);
    for (;;) {
      try {
        return store_->Get(key, std::min(kLook, deadline.Left()));
      } catch (const Error& error) {
        if (error.code() != Code::kTimeout || deadline.Passed()) throw;
      }
      check_();
    }
  }

 private:
  std::shared_ptr<comm::Store> store_;
  std::function<void()> check_;
};

/// A rank whose function has returned, while this one's runs.
struct ReturnedRank {
  std::uint64_t call = 0;
  int attempt = 0;
  int rank = 0;
  std::uint64_t sequence = 0;  // of its last collective
  bool in_group = false;       // whether it had joined the others
};

}  // namespace

struct Worker::State {
  explicit State(UniqueFd socket)
      : link(std::move(socket)),
        home(std::make_shared<AgentHome>([this](Message message) { Ask(std::move(message)); },
                                         [this] {
                                           const std::lock_guard lock(mutex);
                                           return current && cancelled;
                                         })),
        shards(home) {}

  void Start() {
    loop.Watch(
        link.fd(),
        [this] {
          const std::lock_guard lock(link_mutex);
          return static_cast<short>(link.wants_write() ? POLLIN | POLLOUT : POLLIN);
        },
        [this](short) { Handle(); });
    thread.emplace(loop, "orca-worker", [this](const std::exception& error) {
      // Whatever it is, nobody supervises this process any more. Its group is its children.
      if (leaving) return;
      orca::Log(LogLevel::kError, std::string("a worker ends: ") + error.what());
      ::kill(0, SIGKILL);
    });
  }

  void Beat() {
    if (!IsMutant("beat")) {
      Tell({.head = {{"op", "beat"}}});
      TellPace();
    }
    loop.At(Loop::Clock::now() + beat, [this] { Beat(); });
  }

  /// How far the running task is, so that the driver can tell who keeps the others waiting.
  void TellPace() {
    Json pace = {{"op", "pace"}};
    {
      const std::lock_guard lock(mutex);
      if (!current || !communicator || current->task.world < 2) return;
      pace["call"] = current->task.call;
      pace["sequence"] = communicator->sequence();
      pace["waited"] = std::chrono::duration<double>(communicator->waited()).count();
    }
    Tell({.head = std::move(pace)});
  }

  void Handle() {
    while (auto message = Receive()) {
      const std::string op = message->head.value("op", "");
      if (op == "task") {
        const std::lock_guard lock(mutex);
        tasks.push_back(ReadTask(std::move(*message)));
      } else if (op == "cancel") {
        Cancel(message->head.at("call").get<std::uint64_t>(),
               message->head.value("reason", "the call was cancelled"));
      } else if (op == "returned") {
        const std::lock_guard lock(mutex);
        returned.push_back({.call = message->head.at("call").get<std::uint64_t>(),
                            .attempt = message->head.at("attempt").get<int>(),
                            .rank = message->head.at("rank").get<int>(),
                            .sequence = message->head.at("sequence").get<std::uint64_t>(),
                            .in_group = message->head.at("in_group").get<bool>()});
        ApplyReturned();
      } else if (op == "granted") {
        home->Hear(std::move(*message));
      } else if (op == "settings") {
        beat = std::chrono::milliseconds(message->head.at("beat").get<int>());
        Beat();
      } else if (op == "leave") {
        const std::lock_guard lock(mutex);
        leaving = true;
      }
    }
  }

  void Cancel(std::uint64_t call, const std::string& reason) {
    std::shared_ptr<comm::Communicator> group;
    std::function<void()> interrupt_now;
    {
      const std::lock_guard lock(mutex);
      std::erase_if(tasks, [&](const Received& waiting) {
        if (waiting.task.call != call) return false;
        Tell({.head = {{"op", "failed"}, {"call", call}, {"text", reason}, {"echo", true}}});
        return true;
      });
      if (!current || current->task.call != call) return;
      cancelled = true;
      group = communicator;
      interrupt_now = interrupt;
    }
    if (group) group->Abort(reason);
    if (interrupt_now) interrupt_now();
  }

  // The next four with the mutex held.
  void ApplyReturned() {
    if (!InGroup()) return;
    for (const ReturnedRank& other : returned)
      if (IsOfCurrent(other) && other.in_group)
        communicator->NotePeerReturned(other.rank, other.sequence);
  }
  bool IsOfCurrent(const ReturnedRank& other) const {
    return current && other.call == current->task.call && other.attempt == current->task.attempt;
  }
  bool InGroup() const {
    return communicator && current && connected == std::pair(current->meeting, current->task.world);
  }
  const ReturnedRank* ReturnedOutside() const {
    const auto found = std::ranges::find_if(returned, [this](const ReturnedRank& other) {
      return IsOfCurrent(other) && !other.in_group;
    });
    return found == returned.end() ? nullptr : &*found;
  }

  /// While the ranks meet: throws when they never will.
  void CheckMeeting() const {
    const std::lock_guard lock(mutex);
    if (current && cancelled)
      throw Error(Code::kAborted, "the call was cancelled while its ranks were meeting");
    if (const ReturnedRank* const other = ReturnedOutside())
      throw Error(Code::kMismatch,
                  fmt::format("rank {} has returned, while rank {} waits for it in its first "
                              "collective; all ranks must make the same collective calls",
                              other->rank, current->task.rank));
  }

  std::optional<Message> Receive() {
    const std::lock_guard lock(link_mutex);
    link.Flush();
    return link.Receive();
  }

  /// Sends from any thread, at once: waking another one for it takes longer than a short task.
  void Tell(Message message) {
    const std::lock_guard lock(link_mutex);
    link.Send(std::move(message));
    if (link.wants_write()) loop.Post([] {});  // the loop sends the rest
  }

  /// Who waits for an answer does not run the loop.
  void Ask(Message message) {
    const bool has_answer = message.head.contains("ticket");
    Tell(std::move(message));
    if (has_answer) thread->Serve();
  }

  void Report(Json step) {
    constexpr std::chrono::milliseconds kBetween(100);
    {
      const std::lock_guard lock(mutex);
      const auto now = Loop::Clock::now();
      if (now - reported < kBetween) {
        unreported = std::move(step);
        return;
      }
      reported = now;
      unreported = nullptr;
    }
    Tell({.head = std::move(step)});
  }

  void End(Json head, Parcel parcel) {
    std::shared_ptr<comm::Communicator> broken;  // it ends its thread: never under the mutex
    {
      const std::lock_guard lock(mutex);
      head["call"] = current->task.call;
      head["sequence"] = communicator ? communicator->sequence() : 0;
      head["in_group"] = InGroup();
      std::erase_if(returned, [this](const ReturnedRank& other) {
        return other.call < current->task.call || IsOfCurrent(other);
      });
      if (communicator) communicator->ForgetReturned();
      if (cancelled) broken = std::move(communicator);
      current.reset();
      // With the news, which wake others anyway.
      if (!unreported.is_null()) head["last_step"] = std::exchange(unreported, nullptr);
    }
    Tell({.head = std::move(head), .parcel = std::move(parcel)});
  }

  std::mutex link_mutex;  // guards link; taken last
  UnixLink link;
  Loop loop;
  const std::shared_ptr<AgentHome> home;
  const std::shared_ptr<data::ShardHome> shards;  // the same
  std::chrono::milliseconds beat{1000};
  mutable std::mutex mutex;  // guards what follows
  std::deque<Received> tasks;
  std::vector<ReturnedRank> returned;
  std::optional<Received> current;
  bool cancelled = false;
  Loop::Clock::time_point reported = {};
  Json unreported;  // the last step, when it came too soon after the one before
  std::atomic<bool> leaving = false;
  std::function<void()> interrupt;
  std::shared_ptr<comm::Communicator> communicator;
  std::pair<Meeting, int> connected;  // the communicator's meeting and world
  std::condition_variable turn;       // of the loop: nobody else wants it
  std::optional<LoopThread> thread;   // the last: it uses all of the above
};

bool IsEcho(Code code) {
  return code == Code::kPeerLost || code == Code::kAborted || code == Code::kUnavailable ||
         code == Code::kTimeout || code == Code::kUnauthenticated;
}

namespace {

std::atomic<int> stack_output = STDERR_FILENO;
const void* interpreter = nullptr;  // where Python's code begins; null: there is none

void WriteToStack(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(stack_output, text.data(), text.size());
}

const void* ModuleOf(const void* address) {
  Dl_info info{};
  return ::dladdr(address, &info) == 0 ? nullptr : info.dli_fbase;
}

// The stack of the thread that runs the function. A front end may put a handler of its own before
// it, which calls this one: the interpreter's frames are Python's, which that one has printed.
void PrintNativeStack(int /*signal*/) {
  const int error = errno;
  WriteToStack("native stack of the thread that runs the function:\n");
  std::array<void*, 256> frames{};
  const int count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  bool folded = false;
  for (int i = 0; i < count; ++i) {
    void** const frame = &frames[static_cast<std::size_t>(i)];
    const bool folds = interpreter != nullptr && ModuleOf(*frame) == interpreter;
    if (folds && !folded) WriteToStack("... the interpreter ...\n");
    if (!folds) ::backtrace_symbols_fd(frame, 1, stack_output);
    folded = folds;
  }
  errno = error;
}

void InstallStackHandler() {
  std::array<void*, 1> first{};
  ::backtrace(first.data(), 1);  // loads what it needs now, and not inside a handler
  if (const void* const eval = ::dlsym(RTLD_DEFAULT, "_PyEval_EvalFrameDefault"))
    interpreter = ModuleOf(eval);
  struct sigaction action {};
  action.sa_handler = PrintNativeStack;
  action.sa_flags = SA_RESTART;
  ::sigaction(kStackSignal, &action, nullptr);
}

}  // namespace

int StackOutput() { return stack_output; }
void SetStackOutput(UniqueFd output) { stack_output = output.Release(); }

Worker::Worker(UniqueFd agent) : state_(std::make_unique<State>(std::move(agent))) {
  InstallStackHandler();
  state_->Start();
}

Worker::~Worker() {
  state_->communicator.reset();
  state_->home->Close("this worker leaves");
  state_->loop.Stop();
  state_->thread.reset();
}

std::optional<Task> Worker::Next() {
  const auto has_news = [this] {
    const std::lock_guard lock(state_->mutex);
    return !state_->tasks.empty() || state_->leaving;
  };
  while (!has_news()) {
    if (!state_->thread->RunUntil(has_news, Deadline::After(std::chrono::hours(1)), state_->turn))
      break;
  }
  const std::lock_guard lock(state_->mutex);
  if (state_->tasks.empty() || state_->leaving) return std::nullopt;
  state_->current = std::move(state_->tasks.front());
  state_->tasks.pop_front();
  state_->cancelled = false;
  state_->ApplyReturned();
  // Held only by whoever runs the task, so that long arguments go with it.
  Task task = state_->current->task;
  state_->current->task.parcel = {};
  return task;
}

void Worker::Done(Parcel result,
                  const std::vector<std::shared_ptr<const data::ShardHold>>& shards) {
  Json head = {{"op", "done"}};
  for (const auto& shard : shards) head["shards"].push_back(shard->id());
  state_->End(std::move(head), std::move(result));
}

const std::shared_ptr<data::ShardHome>& Worker::shards() const { return state_->shards; }

void Worker::Failed(TaskFailure failure) {
  state_->End({{"op", "failed"},
               {"type", failure.type},
               {"text", Shortened(failure.text)},
               {"traceback", Shortened(failure.traceback)},
               {"echo", failure.echo},
               {"lost_peer", failure.lost_peer}},
              std::move(failure.parcel));
}

bool Worker::Cancelled() const {
  const std::lock_guard lock(state_->mutex);
  return state_->current && state_->cancelled;
}

void Worker::OnCancel(std::function<void()> interrupt) {
  const std::lock_guard lock(state_->mutex);
  state_->interrupt = std::move(interrupt);
}

std::shared_ptr<comm::Communicator> Worker::Communicator() {
  Received now;
  std::shared_ptr<comm::Communicator> old;  // it ends its thread: never under the mutex
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->current)
      throw Error(Code::kFailedPrecondition,
                  "there is no group outside of a function that orca.run runs");
    now = {.task = state_->current->task, .meeting = state_->current->meeting};
    if (state_->communicator && state_->connected == std::pair(now.meeting, now.task.world))
      return state_->communicator;
    old = std::move(state_->communicator);
  }
  old.reset();
  comm::Membership membership;
  membership.group = now.meeting.group;
  membership.generation = now.meeting.generation;
  membership.rank = now.task.rank;
  membership.world = now.task.world;
  const net::Secret secret = net::Secret::FromHex(now.meeting.secret);
  membership.secret = secret;
  comm::CommOptions options = comm::OptionsFromEnvironment();
  options.cancelled = [this] { return Cancelled(); };
  options.on_long_wait = [this, limit = StallAfter(options)](const std::string& text,
                                                             std::chrono::milliseconds waited) {
    state_->Tell({.head = {{"op", "waits"}, {"text", text}, {"stalled", waited > limit}}});
  };
  if (now.task.world > 1) {
    membership.store = std::make_shared<CancellableStore>(
        comm::ConnectTcpStore(now.meeting.store, secret, options.connect_timeout),
        [this] { state_->CheckMeeting(); });
  }
  std::shared_ptr<comm::Communicator> group = comm::Communicator::Connect(membership, options);
  bool cancelled = false;
  {
    const std::lock_guard lock(state_->mutex);
    cancelled = state_->cancelled;
    state_->communicator = group;
    state_->connected = {now.meeting, now.task.world};
    state_->ApplyReturned();
  }
  if (cancelled) group->Abort("the call was cancelled");
  return group;
}

void Worker::Leave(std::uint64_t basket, std::span<const std::uint64_t> shards) {
  state_->home->AskForWords({{"op", "deposit"}, {"basket", basket}, {"instead", true}},
                            PackNumbers(shards));
}

void Worker::Report(std::uint64_t step, const std::map<std::string, double>& metrics) {
  state_->Report({{"op", "step"}, {"step", step}, {"metrics", metrics}});
}

void Worker::Log(const std::string& logger, int level, const std::string& text) {
  state_->Tell(
      {.head = {{"op", "log"}, {"logger", logger}, {"level", level}, {"text", Shortened(text)}}});
}

}  // namespace orca::runtime
