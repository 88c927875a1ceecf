#include "testing/netns.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "orca/core/unique_fd.h"

namespace orca::testing {
namespace {

constexpr const char* kPrefix = "orca-";

bool Shell(const std::string& command) {
  return std::system((command + " 2>/dev/null >&2").c_str()) == 0;
}

std::string SwitchName() { return fmt::format("{}{}-switch", kPrefix, ::getpid()); }

// Removes the namespaces of tests that have ended.
void ReapStale() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/run/netns", error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kPrefix)) continue;
    const pid_t owner = std::atoi(name.c_str() + std::string_view(kPrefix).size());
    if (owner > 0 && ::kill(owner, 0) != 0) Shell("ip netns del " + name);
  }
}

}  // namespace

std::string Network::Name(int host) const { return fmt::format("{}{}-{}", kPrefix, owner_, host); }

std::string Network::address(int host) const { return fmt::format("10.77.0.{}", host + 1); }

std::unique_ptr<Network> Network::Create(int hosts, std::string* reason) {
  ReapStale();
  std::unique_ptr<Network> network(new Network);
  if (!Shell("ip netns add " + SwitchName())) {
    *reason = "network namespaces cannot be made here (needs root and Debian's iproute2)";
    return nullptr;
  }
  bool good = Shell(fmt::format("ip -n {} link add br0 type bridge && ip -n {} link set br0 up",
                                SwitchName(), SwitchName()));
  for (int host = 0; host < hosts && good; ++host) {
    const std::string name = network->Name(host);
    good = Shell("ip netns add " + name);
    ++network->hosts_;
    good = good && Shell(fmt::format("ip link add eth0 netns {} type veth peer name p{} netns {}",
                                     name, host, SwitchName()));
    good = good &&
           Shell(fmt::format("ip -n {0} link set p{1} master br0 && ip -n {0} link set p{1} up",
                             SwitchName(), host));
    good = good &&
           Shell(fmt::format("ip -n {0} addr add {1}/24 dev eth0 && ip -n {0} link set eth0 up && "
                             "ip -n {0} link set lo up",
                             name, network->address(host)));
  }
  if (good) return network;
  *reason = "veth pairs or bridges cannot be made in network namespaces here";
  return nullptr;
}

Network::~Network() {
  for (int host = 0; host < hosts_; ++host) Shell("ip netns del " + Name(host));
  Shell("ip netns del " + SwitchName());
}

void Network::Enter(int host) const {
  const std::string path = "/run/netns/" + Name(host);
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd || ::setns(fd.get(), CLONE_NEWNET) != 0) throw std::runtime_error("cannot enter " + path);
}

void Network::Run(int host, const std::string& command) const {
  EXPECT_TRUE(Try(host, command)) << command;
}

bool Network::Try(int host, const std::string& command) const {
  return Shell(fmt::format("ip netns exec {} {}", Name(host), command));
}

void Network::CutIncoming(int host) const {
  Run(host,
      "nft 'add table inet cut; add chain inet cut in { type filter hook input priority 0; policy "
      "drop; }'");
}

void Network::CutOutgoing(int host) const {
  Run(host,
      "nft 'add table inet cut; add chain inet cut out { type filter hook output priority 0; "
      "policy drop; }'");
}

}  // namespace orca::testing
