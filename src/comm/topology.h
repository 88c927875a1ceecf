// Who sits where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "orca/core/host.h"

namespace orca::comm {

/// What a rank tells the others about itself before they are connected.
struct Card {
  std::string version;    ///< Of the engine; must be the same everywhere.
  std::string options;    ///< Those that must be the same everywhere, as text.
  std::string host;       ///< Ranks with the same value share memory.
  std::string host_name;  ///< For messages.
  std::int64_t pid = 0;
  std::string unix_name;  ///< Of its abstract socket.
  CpuSet cpus;

  std::string Encode() const;
  static Card Decode(const std::string& text);
};

/// The ranks of a group by host. Hosts are in the order of their lowest rank; ranks of a host
/// ascend.
class Topology {
 public:
  Topology() = default;
  Topology(int rank, std::vector<Card> cards);

  int rank() const { return rank_; }
  int world() const { return static_cast<int>(cards_.size()); }
  const Card& card(int rank) const { return cards_[static_cast<std::size_t>(rank)]; }
  /// "rank 3 (host a, pid 12)".
  std::string Name(int rank) const;
  std::vector<std::string> Names() const;

  int hosts() const { return static_cast<int>(ranks_.size()); }
  int host() const { return host_of(rank_); }
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  /// The ranks on `host`, by local index.
  const std::vector<int>& ranks_on(int host) const {
    return ranks_[static_cast<std::size_t>(host)];
  }
  const std::vector<int>& local_ranks() const { return ranks_on(host()); }
  int local_index() const { return local_index_of(rank_); }
  int local_index_of(int rank) const { return local_index_of_[static_cast<std::size_t>(rank)]; }
  bool is_local(int rank) const { return host_of(rank) == host(); }
  /// The rank on `host` that deals with the rank of local index `index` of another host.
  int counterpart(int host, int index) const {
    const auto& ranks = ranks_on(host);
    return ranks[static_cast<std::size_t>(index) % ranks.size()];
  }
  /// The first rank of every host speaks for it.
  int leader(int host) const { return ranks_on(host).front(); }

 private:
  int rank_ = 0;
  std::vector<Card> cards_;
  std::vector<std::vector<int>> ranks_;
  std::vector<int> host_of_;
  std::vector<int> local_index_of_;
};

}  // namespace orca::comm
