// How ranks that share nothing but a store become a group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/topology.h"
#include "orca/comm/communicator.h"
#include "orca/core/deadline.h"

namespace orca::comm {

/// The ranks' first meeting: every rank leaves something in the store, rank 0 collects it and
/// publishes the whole, so that it costs every rank two requests.
class Rendezvous {
 public:
  Rendezvous(const Membership& membership, const Deadline& deadline)
      : membership_(membership), deadline_(deadline) {}

  /// Returns what every rank left under `topic`. Throws kTimeout naming the ranks that did not
  /// come.
  std::vector<std::string> Meet(const std::string& topic, const std::string& mine);
  /// The job's secret: the membership's, or one that rank 0 makes and publishes.
  net::Secret AgreeOnSecret();

 private:
  std::string Key(const std::string& topic) const;
  std::string Collect(const std::string& topic, const std::string& mine);

  const Membership& membership_;
  const Deadline& deadline_;
};

/// Throws kFailedPrecondition when a rank runs another version or other options than rank 0.
void CheckCards(const std::vector<Card>& cards);

}  // namespace orca::comm
