#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "runtime/process.h"

extern char** environ;

namespace orca::runtime {
namespace {

constexpr int kLinkFd = 3;
rlimit limit_before{};  // of open files; nothing while this process has not raised it

/// The texts of a program as exec wants them.
class Texts {
 public:
  explicit Texts(std::vector<std::string> texts) : texts_(std::move(texts)) {
    for (std::string& text : texts_) pointers_.push_back(text.data());
    pointers_.push_back(nullptr);
  }
  char** get() { return pointers_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

std::vector<std::string> Environment(const Program& program) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    if (!program.environment.contains(text.substr(0, text.find('=')))) all.push_back(text);
  }
  for (const auto& [name, value] : program.environment) all.push_back(name + "=" + value);
  return all;
}

// /proc/PID/stat after the name: state, parent, ... Empty when there is no such process.
std::string StatFields(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::stringstream text;
  text << file.rdbuf();
  const std::string stat = text.str();
  const auto end = stat.rfind(") ");
  return end == std::string::npos ? "" : stat.substr(end + 2);
}

[[noreturn]] void ThrowCannotStart(const Program& program, int error) {
  throw Error(Code::kUnavailable,
              fmt::format("cannot start {}: {}", program.command.at(0), DescribeLimitError(error)));
}

}  // namespace

pid_t StartDetached(const Program& program, const UniqueFd& link) {
  Texts arguments(program.command);
  Texts environment(Environment(program));
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  // A high number first: dup2 of a descriptor onto itself would leave it close-on-exec.
  const UniqueFd high(::fcntl(link.get(), F_DUPFD_CLOEXEC, kLinkFd + 1));
  posix_spawn_file_actions_adddup2(&actions, high.get(), kLinkFd);
  // What is typed or piped into the driver is the driver's.
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  sigset_t none;
  sigemptyset(&none);
  sigset_t all;
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, arguments.get()[0], &actions, &attributes, arguments.get(),
                                  environment.get());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) ThrowCannotStart(program, error);
  return pid;
}

pid_t StartBound(const Program& program, const UniqueFd& link, const UniqueFd& output,
                 const UniqueFd& errors) {
  Texts arguments(program.command);
  Texts environment(Environment(program));
  const UniqueFd high(::fcntl(link.get(), F_DUPFD_CLOEXEC, 10));
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) ThrowCannotStart(program, errno);
  if (pid > 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  if (limit_before.rlim_cur != 0) ::setrlimit(RLIMIT_NOFILE, &limit_before);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::dup2(output.get(), STDOUT_FILENO);
  ::dup2(errors.get(), STDERR_FILENO);
  ::dup2(high.get(), kLinkFd);
  if (!program.directory.empty() && ::chdir(program.directory.c_str()) != 0) {
    const std::string text =
        fmt::format("cannot enter {}: {}\n", program.directory, std::strerror(errno));
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
    ::_exit(127);
  }
  ::execve(arguments.get()[0], arguments.get(), environment.get());
  const std::string text =
      fmt::format("cannot start {}: {}\n", program.command.at(0), std::strerror(errno));
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  ::_exit(127);
}

void RaiseDescriptorLimit() {
  if (limit_before.rlim_cur != 0 || ::getrlimit(RLIMIT_NOFILE, &limit_before) != 0) return;
  const rlimit most{.rlim_cur = limit_before.rlim_max, .rlim_max = limit_before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &most);
}

std::string DescribeExit(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    const char* name = ::sigabbrev_np(signal);
    return fmt::format("was killed by signal {} (SIG{})", signal, name == nullptr ? "?" : name);
  }
  return fmt::format("left with exit code {}", WEXITSTATUS(wait_status));
}

std::vector<pid_t> Children() {
  std::ifstream file(fmt::format("/proc/self/task/{}/children", ::gettid()));
  std::vector<pid_t> children;
  for (pid_t pid = 0; file >> pid;) children.push_back(pid);
  return children;
}

long OomKills() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto last = line.rfind(':');
    if (last == std::string::npos) continue;
    const std::string path = line.substr(last + 1);
    const std::string file = line.starts_with("0::") ? "/sys/fs/cgroup" + path + "/memory.events"
                             : line.find(":memory:") != std::string::npos
                                 ? "/sys/fs/cgroup/memory" + path + "/memory.oom_control"
                                 : "";
    std::ifstream events(file);
    std::string name;
    for (long count = 0; !file.empty() && events >> name >> count;)
      if (name == "oom_kill") return count;
  }
  return 0;
}

double StartTime(pid_t pid) {
  std::istringstream fields(StatFields(pid));
  std::string field;
  for (int i = 0; i < 20 && fields >> field; ++i) {
  }
  return field.empty() ? 0 : std::strtod(field.c_str(), nullptr);
}

std::string ProcessState(pid_t pid) {
  const std::string fields = StatFields(pid);
  if (fields.empty()) return "gone";
  switch (fields[0]) {
    case 'T':
    case 't':
      return "stopped";
    case 'R':
      return "running";
    case 'D':
      return "waiting for a disk or a device";
    case 'Z':
      return "dead";
    default:
      return "sleeping";
  }
}

}  // namespace orca::runtime
