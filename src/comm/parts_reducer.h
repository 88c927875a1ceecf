// Reduces part r of everybody's data into rank r, over hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "comm/group.h"
#include "comm/wire.h"

namespace orca::comm {

/// What a PartsReducer works on.
struct PartsReduction {
  std::vector<ConstBytes> inputs;   ///< One a rank.
  const std::byte* base = nullptr;  ///< As in LocalReduction.
  Bytes result;                     ///< Receives this rank's part.
  /// Called when bytes [begin, end) of the result are final, in ascending order, a window at a
  /// time.
  std::function<void(std::size_t begin, std::size_t end)> on_result;
};

/// For groups on several hosts. A host first reduces what its own ranks have (local rank i does the
/// parts of the ranks with local index i on every host), sends the partial results to the ranks
/// that they belong to, and these add up one partial result a host, in the order of the hosts.
///
/// Holds what is being sent: flush the mesh before it goes.
class PartsReducer {
 public:
  PartsReducer(Group& group, const Collective& call, PartsReduction parts);

  void Run();
  /// The pieces in which results become final.
  std::size_t window() const { return window_; }

 private:
  struct Window {
    std::vector<std::vector<std::byte>> buffers;  // one a host
    std::vector<std::uint64_t> numbers;
  };

  ConstBytes Input(int rank) const { return parts_.inputs[static_cast<std::size_t>(rank)]; }
  bool Owns(int rank) const;
  int Sender(int host) const;
  void ReduceLocally(int host);
  void PostSends();
  void PostReceives(Window& window, std::size_t bytes);
  void ReduceAcrossHosts();
  void AddUp(Window& window, std::size_t begin, std::size_t bytes);

  Group& group_;
  const Topology& topology_;
  const Collective& call_;
  PartsReduction parts_;
  Wire wire_;
  std::size_t hosts_;
  std::size_t window_;
  std::vector<ConstBytes> partials_;  // one a rank, where this rank owns it
  std::deque<std::vector<std::byte>> scratch_;
  std::vector<std::vector<std::byte>> unpacked_;
};

/// Calls step(begin, bytes) for every window of `bytes` bytes; once, with none, when there are
/// none, so that ranks with nothing to say compare their calls, too.
template <typename Step>
void ForWindows(std::size_t bytes, std::size_t window, Step step) {
  std::size_t begin = 0;
  do {
    const std::size_t length = std::min(window, bytes - begin);
    step(begin, length);
    begin += length;
  } while (begin < bytes);
}

}  // namespace orca::comm
