#include "testing/cgroup.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace orca::testing {
namespace {

// The folder of this process's own group, below which a child's may be made.
std::string OwnFolder(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos || line.substr(first + 1, second - first - 1) != controller)
      continue;
    return "/sys/fs/cgroup/" + controller + line.substr(second + 1);
  }
  return "";
}

bool WriteTo(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}

}  // namespace

std::optional<Cgroup> Cgroup::Create(const std::string& controller, const std::string& file,
                                     std::size_t value) {
  const std::string parent = OwnFolder(controller);
  std::error_code error;
  const std::string path = fmt::format("{}/orca-test-{}", parent, ::getpid());
  if (parent.empty() || !std::filesystem::create_directory(path, error)) {
    std::printf("[ SKIPPED  ] no %s cgroup (v1) can be made: %s\n", controller.c_str(),
                error.message().c_str());
    return std::nullopt;
  }
  Cgroup group(path);
  if (!WriteTo(path + "/" + file, std::to_string(value))) {
    std::printf("[ SKIPPED  ] %s cannot be set\n", file.c_str());
    return std::nullopt;
  }
  return group;
}

Cgroup::~Cgroup() {
  if (!path_.empty()) ::rmdir(path_.c_str());
}

bool Cgroup::Enter() const { return WriteTo(path_ + "/cgroup.procs", std::to_string(::getpid())); }

}  // namespace orca::testing
