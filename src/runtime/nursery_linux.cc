#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/runtime/nursery.h"
#include "orca/runtime/worker.h"
#include "runtime/huge_pages.h"
#include "runtime/link.h"

namespace orca::runtime {
namespace {

/// Memory that a step frees is what the next one asks for. Given back to the system in between,
/// every page of it would be cleared and mapped again: a fifth of the time of a step with large
/// batches.
void KeepFreedMemory() {
  constexpr int kMostKept = 256 << 20;     // Bytes behind the last block in use.
  constexpr int kMostFromHeap = 32 << 20;  // The largest that glibc takes.
  if (std::getenv("MALLOC_TRIM_THRESHOLD_") != nullptr ||
      std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr)
    return;  // The user has chosen.
  ::mallopt(M_TRIM_THRESHOLD, kMostKept);
  ::mallopt(M_MMAP_THRESHOLD, kMostFromHeap);
}

}  // namespace

void Birth::Settle() {
  KeepFreedMemory();
  ::setpgid(0, 0);
  ::dup2(output.get(), STDOUT_FILENO);
  ::dup2(errors.get(), STDERR_FILENO);
  output.Reset();
  errors.Reset();
  ::fcntl(stacks.get(), F_SETFL, O_NONBLOCK);  // It is written to in a signal handler.
  SetStackOutput(std::move(stacks));
}

struct Nursery::State {
  explicit State(UniqueFd socket) : agent(std::move(socket)) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &signals, &before);
    children = UniqueFd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!children) throw Error(Code::kResourceExhausted, DescribeLimitError(errno));
  }
  ~State() { ::sigprocmask(SIG_SETMASK, &before, nullptr); }

  void Reap() {
    signalfd_siginfo info{};
    while (::read(children.get(), &info, sizeof info) == sizeof info) {
    }
    int status = 0;
    rusage used{};
    for (pid_t pid = 0; (pid = ::wait4(-1, &status, WNOHANG, &used)) > 0;) {
      agent.Send(
          {.head = {{"op", "exited"},
                    {"pid", pid},
                    {"status", status},
                    {"peak", std::size_t{1024} * static_cast<std::size_t>(used.ru_maxrss)}}});
      // Where workers come and go, there will be more forks.
      if (++ended != kManyEnded) continue;
      huge_pages.Find();
      if (huge_pages.pending()) agent.Send({.head = {{"op", "moving"}}});
    }
  }

  static constexpr int kManyEnded = 32;  // By then it pays.

  // A nursery dies with its agent. A spare does so once its parent, which it outlives, is gone.
  void BindToParent() const {
    if (::getppid() != forked_by) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  }

  UnixLink agent;
  const pid_t self = ::getpid();
  pid_t forked_by = -1;  // a spare
  UniqueFd children;
  sigset_t before{};
  int ended = 0;
  HugePages huge_pages;
};

std::optional<int> Nursery::InheritedFd() {
  const char* text = std::getenv("ORCA_NURSERY");
  return text == nullptr ? std::nullopt : std::optional(std::atoi(text));
}

Nursery::Nursery(UniqueFd agent) : state_(std::make_unique<State>(std::move(agent))) {}
Nursery::~Nursery() = default;

void Nursery::Ready(int threads, const std::map<std::string, std::string>& versions) {
  state_->agent.Send(
      {.head = {
           {"op", "ready"}, {"pid", ::getpid()}, {"threads", threads}, {"versions", versions}}});
}

std::optional<Birth> Nursery::Next() {
  for (;;) {
    state_->Reap();
    try {
      while (auto message = state_->agent.Receive()) {
        if (message->head.value("op", "") != "fork") continue;
        state_->BindToParent();
        const auto worker = message->head.at("worker").get<std::uint64_t>();
        if (message->fds.size() != (worker == 0 ? 1 : 4)) continue;
        if (worker == 0) return Birth{.link = std::move(message->fds[0])};
        return Birth{.worker = worker,
                     .link = std::move(message->fds[0]),
                     .output = std::move(message->fds[1]),
                     .errors = std::move(message->fds[2]),
                     .stacks = std::move(message->fds[3])};
      }
    } catch (const Error& error) {
      if (error.code() != Code::kPeerLost) throw;
      return std::nullopt;
    }
    const short agent_events = state_->agent.wants_write() ? POLLIN | POLLOUT : POLLIN;
    std::array<pollfd, 2> fds{{{.fd = state_->agent.fd(), .events = agent_events, .revents = 0},
                               {.fd = state_->children.get(), .events = POLLIN, .revents = 0}}};
    const bool idle = ::poll(fds.data(), fds.size(), state_->huge_pages.pending() ? 0 : 1000) == 0;
    if (idle && state_->huge_pages.pending()) {
      state_->huge_pages.MoveOne();
      if (!state_->huge_pages.pending()) state_->agent.Send({.head = {{"op", "moved"}}});
    }
    state_->agent.Flush();
  }
}

void Nursery::BecomeSpare(Birth birth) {
  const pid_t parent = state_->self;
  state_.reset();  // It puts signals back, which the next one changes.
  state_ = std::make_unique<State>(std::move(birth.link));
  state_->forked_by = parent;
  // One that was stopped has to continue to see that there is no agent any more.
  ::prctl(PR_SET_PDEATHSIG, SIGCONT);
}

void Nursery::Forked(std::uint64_t worker, pid_t pid) {
  state_->agent.Send({.head = {{"op", "forked"}, {"worker", worker}, {"pid", pid}}});
}

void Nursery::CannotFork(std::uint64_t worker, int error) {
  state_->agent.Send({.head = {{"op", "cannot fork"},
                               {"worker", worker},
                               {"why", "cannot fork: " + DescribeLimitError(error)}}});
}

}  // namespace orca::runtime
