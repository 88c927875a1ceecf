#include "comm/topology.h"

#include <fmt/format.h>

#include <map>
#include <sstream>
#include <utility>

#include "orca/core/error.h"

namespace orca::comm {

std::string Card::Encode() const {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n", version, options, host, host_name, pid,
                     unix_name, cpus.to_string());
}

Card Card::Decode(const std::string& text) {
  std::istringstream lines(text);
  Card card;
  std::string pid;
  std::string cpus;
  std::getline(lines, card.version);
  std::getline(lines, card.options);
  std::getline(lines, card.host);
  std::getline(lines, card.host_name);
  std::getline(lines, pid);
  std::getline(lines, card.unix_name);
  std::getline(lines, cpus);
  try {
    card.pid = std::stoll(pid);
    card.cpus = CpuSet(cpus);
  } catch (const std::exception&) {
    throw Error(
        Code::kPeerLost,
        "a rank published a card that cannot be read; use the same version of orca everywhere");
  }
  return card;
}

Topology::Topology(int rank, std::vector<Card> cards) : rank_(rank), cards_(std::move(cards)) {
  std::map<std::string, int> known;
  for (int r = 0; r < world(); ++r) {
    const auto [entry, is_new] = known.emplace(card(r).host, static_cast<int>(ranks_.size()));
    if (is_new) ranks_.emplace_back();
    auto& ranks = ranks_[static_cast<std::size_t>(entry->second)];
    host_of_.push_back(entry->second);
    local_index_of_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(r);
  }
}

std::string Topology::Name(int rank) const {
  return fmt::format("rank {} (host {}, pid {})", rank, card(rank).host_name, card(rank).pid);
}

std::vector<std::string> Topology::Names() const {
  std::vector<std::string> names;
  for (int r = 0; r < world(); ++r) names.push_back(Name(r));
  return names;
}

}  // namespace orca::comm
