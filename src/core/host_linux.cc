#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "orca/core/error.h"
#include "orca/core/host.h"

namespace orca {
namespace {

std::string ReadFirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<std::size_t> ReadNumber(const std::string& path) {
  const std::string line = ReadFirstLine(path);
  if (line.empty() || line == "max") return std::nullopt;
  try {
    return std::stoull(line);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// The folders of this process's cgroup for `controller`, innermost first: a limit may sit on any of
// them.
std::vector<std::string> CgroupFolders(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  std::string root;
  std::string path;
  while (std::getline(file, line)) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    if (names == ",,") {  // cgroup v2
      if (root.empty()) {
        root = "/sys/fs/cgroup";
        path = line.substr(second + 1);
      }
    } else if (names.find("," + controller + ",") != std::string::npos) {
      root = "/sys/fs/cgroup/" + controller;
      path = line.substr(second + 1);
    }
  }
  std::vector<std::string> folders;
  if (root.empty()) return folders;
  while (path.size() > 1) {
    folders.push_back(root + path);
    path.erase(path.rfind('/'));
  }
  folders.push_back(root);
  return folders;
}

// The limits of processes and threads, with what is used where the kernel tells.
std::string ProcessLimits() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NPROC, &limit);
  std::string text =
      limit.rlim_cur == RLIM_INFINITY
          ? "RLIMIT_NPROC is unlimited"
          : fmt::format("RLIMIT_NPROC is {} (raise it with 'ulimit -u')", limit.rlim_cur);
  for (const std::string& folder : CgroupFolders("pids")) {
    const auto most = ReadNumber(folder + "/pids.max");
    if (!most) continue;
    text += fmt::format(", pids.max of the cgroup {} is {} ({} used)", folder, *most,
                        ReadFirstLine(folder + "/pids.current"));
  }
  return text + ", kernel.threads-max is " + ReadFirstLine("/proc/sys/kernel/threads-max");
}

std::atomic<std::uint64_t> fork_count{0};
std::atomic<std::uint64_t> child_count{0};

}  // namespace

std::string HostIdentity() {
  std::array<char, 64> name{};
  const auto length = ::readlink("/proc/self/ns/net", name.data(), name.size() - 1);
  const std::string network(name.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  return fmt::format("{}/{}/{}", ReadFirstLine("/proc/sys/kernel/random/boot_id"), network,
                     ::getuid());
}

std::string HostName() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

CpuSet AllowedCpus() {
  CpuSet cpus;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (::sched_getaffinity(0, sizeof(mask), &mask) != 0) {
    cpus.set(0);
    return cpus;
  }
  for (std::size_t cpu = 0; cpu < std::min<std::size_t>(CPU_SETSIZE, kMaxCpus); ++cpu) {
    if (CPU_ISSET(cpu, &mask)) cpus.set(cpu);
  }
  return cpus;
}

int CgroupCpuLimit() {
  double limit = std::numeric_limits<int>::max();
  for (const std::string& folder : CgroupFolders("cpu")) {
    std::istringstream v2(ReadFirstLine(folder + "/cpu.max"));
    std::string quota_text;
    double quota = -1;
    double period = 0;
    if (v2 >> quota_text >> period && quota_text != "max") quota = std::stod(quota_text);
    if (quota <= 0) {
      const auto v1_quota = ReadFirstLine(folder + "/cpu.cfs_quota_us");
      const auto v1_period = ReadNumber(folder + "/cpu.cfs_period_us");
      if (!v1_quota.empty() && v1_quota[0] != '-' && v1_period) {
        quota = std::stod(v1_quota);
        period = static_cast<double>(*v1_period);
      }
    }
    if (quota > 0 && period > 0) limit = std::min(limit, std::ceil(quota / period));
  }
  return static_cast<int>(std::max(limit, 1.0));
}

MemoryLeft AvailableMemory() {
  MemoryLeft left{.bytes = std::numeric_limits<std::size_t>::max(), .limit = "no limit"};
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  std::size_t kib = 0;
  std::string unit;
  while (meminfo >> key >> kib && std::getline(meminfo, unit)) {
    if (key == "MemAvailable:") {
      left = {.bytes = kib * 1024, .limit = "the machine's available memory"};
      break;
    }
  }
  for (const std::string& folder : CgroupFolders("memory")) {
    auto limit = ReadNumber(folder + "/memory.max");
    auto used = ReadNumber(folder + "/memory.current");
    if (!limit || !used) {
      limit = ReadNumber(folder + "/memory.limit_in_bytes");
      used = ReadNumber(folder + "/memory.usage_in_bytes");
    }
    if (!limit || !used) continue;
    // Page cache can be dropped, so it does not count as used; of what was read again lately, as
    // programs are, and shards in files, half.
    std::size_t inactive = 0;
    std::size_t active = 0;
    std::ifstream stat(folder + "/memory.stat");
    std::size_t value = 0;
    while (stat >> key >> value) {
      if (key == "inactive_file" || key == "total_inactive_file")
        inactive = std::max(inactive, value);
      if (key == "active_file" || key == "total_active_file") active = std::max(active, value);
    }
    const std::size_t reclaimable = inactive + active / 2;
    const std::size_t kept = *used > reclaimable ? *used - reclaimable : 0;
    const std::size_t bytes = *limit > kept ? *limit - kept : 0;
    if (bytes < left.bytes) {
      left = {
          .bytes = bytes,
          .limit = fmt::format("the cgroup's memory limit of {} ({})", HumanBytes(*limit), folder)};
    }
  }
  return left;
}

void CheckMemoryFor(std::size_t bytes, const std::string& what) {
  const MemoryLeft left = AvailableMemory();
  if (bytes <= left.bytes) return;
  throw Error(Code::kResourceExhausted,
              fmt::format("{} needs {} of memory, but {} leaves {}; use less or raise the limit",
                          what, HumanBytes(bytes), left.limit, HumanBytes(left.bytes)));
}

std::string DescribeLimitError(int error) {
  rlimit limit{};
  switch (error) {
    case EMFILE:
      ::getrlimit(RLIMIT_NOFILE, &limit);
      return fmt::format(
          "this process may open {} files (RLIMIT_NOFILE) and has; raise it with 'ulimit -n'",
          limit.rlim_cur);
    case ENFILE:
      return fmt::format("the system may open {} files (fs.file-max) and has; raise it with sysctl",
                         ReadFirstLine("/proc/sys/fs/file-max"));
    case EAGAIN:
      return "no more processes or threads: " + ProcessLimits() +
             "; use fewer workers or raise the limit";
    default:
      return std::strerror(error);
  }
}

std::jthread StartThread(std::function<void(const std::stop_token&)> body) {
  try {
    return std::jthread(std::move(body));
  } catch (const std::system_error& error) {
    throw Error(Code::kResourceExhausted,
                fmt::format("cannot start a thread: {}", DescribeLimitError(error.code().value())));
  }
}

std::uint64_t ForkCount() {
  // Registered on first use, which is before any object that asks.
  [[maybe_unused]] static const int registered = ::pthread_atfork(
      nullptr, nullptr, [] { fork_count.fetch_add(1, std::memory_order_relaxed); });
  return fork_count.load(std::memory_order_relaxed);
}

std::uint64_t ChildCount() {
  [[maybe_unused]] static const int registered = ::pthread_atfork(
      nullptr, [] { child_count.fetch_add(1, std::memory_order_relaxed); }, nullptr);
  return child_count.load(std::memory_order_relaxed);
}

std::string HumanBytes(std::size_t bytes) {
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, units[unit]);
}

}  // namespace orca
