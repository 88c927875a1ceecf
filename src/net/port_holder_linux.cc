#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

#include "net/port_holder.h"

namespace orca::net {
namespace {

namespace fs = std::filesystem;

struct SocketEntry {
  std::uint64_t inode = 0;
  unsigned user = 0;
};

// A line is: slot, local address:port, remote one, state, queues, timers, retransmits, user,
// timeout, inode, ...
std::optional<SocketEntry> FindInTable(const char* table, std::uint16_t port) {
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);
  std::optional<SocketEntry> found;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timers, retransmits, timeout;
    SocketEntry entry;
    if (!(fields >> slot >> local >> remote >> state >> queues >> timers >> retransmits >>
          entry.user >> timeout >> entry.inode)) {
      continue;
    }
    const std::size_t colon = local.rfind(':');
    if (colon == std::string::npos || entry.inode == 0) continue;
    if (std::strtoul(local.c_str() + colon + 1, nullptr, 16) != port) continue;
    if (state == "0A") return entry;  // The listener itself.
    if (!found) found = entry;
  }
  return found;
}

bool HasSocket(const fs::path& process, const std::string& link) {
  std::error_code error;
  for (fs::directory_iterator it(process / "fd", error), end; !error && it != end;
       it.increment(error)) {
    std::error_code unreadable;
    if (fs::read_symlink(it->path(), unreadable) == link) return true;
  }
  return false;
}

std::string Describe(const fs::path& process) {
  const std::string pid = process.filename();
  std::string command;
  std::ifstream file(process / "comm");
  std::getline(file, command);
  const char* const own = pid == std::to_string(::getpid()) ? "this process, " : "process ";
  return fmt::format("{}{} ({})", own, pid, command.empty() ? "command unknown" : command);
}

}  // namespace

std::string PortHolder(std::uint16_t port) {
  std::optional<SocketEntry> entry = FindInTable("/proc/net/tcp", port);
  if (!entry) entry = FindInTable("/proc/net/tcp6", port);
  if (!entry) return "another process";
  const std::string link = fmt::format("socket:[{}]", entry->inode);
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (HasSocket(it->path(), link)) return Describe(it->path());
  }
  return fmt::format("another process, of user {}", entry->user);
}

}  // namespace orca::net
