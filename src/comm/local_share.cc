#include <algorithm>
#include <cstring>

#include "comm/local_ops.h"

namespace orca::comm {
namespace {

template <typename Buffer>
std::size_t TotalBytes(const std::vector<Buffer>& buffers) {
  std::size_t total = 0;
  for (const auto& buffer : buffers) total += buffer.size();
  return total;
}

// Calls copy(buffer bytes, position in the stream) for the parts of `buffers` that overlap [begin,
// end) of the stream that they form one behind the other.
template <typename Buffer, typename Copy>
void ForRange(const std::vector<Buffer>& buffers, std::size_t begin, std::size_t end, Copy copy) {
  std::size_t position = 0;
  for (const auto& buffer : buffers) {
    const std::size_t from = std::max(begin, position);
    const std::size_t to = std::min(end, position + buffer.size());
    if (from < to) copy(buffer.subspan(from - position, to - from), from);
    position += buffer.size();
    if (position >= end) return;
  }
}

}  // namespace

void LocalShareAll(LocalGroup& group, const LocalShare& call) {
  const std::size_t piece = group.staging_bytes();
  const auto direct = [&](int peer) { return call.registered && group.registered(peer); };
  const std::size_t mine = direct(group.index()) ? 0 : TotalBytes(call.mine);
  // Everybody must count the same phases: a rank knows its peers' sizes from the buffers that
  // receive them.
  std::size_t longest = mine;
  bool any_direct = direct(group.index());
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == group.index()) continue;
    if (direct(peer)) {
      any_direct = true;
    } else {
      longest = std::max(longest, TotalBytes(call.theirs[static_cast<std::size_t>(peer)]));
    }
  }
  const std::size_t pieces = (longest + piece - 1) / piece;
  for (std::size_t phase = 0; phase <= pieces; ++phase) {
    const std::size_t begin = phase * piece;
    if (begin < mine) {
      std::byte* staging = group.staging(group.index(), phase);
      ForRange(call.mine, begin, std::min(begin + piece, mine),
               [&](ConstBytes part, std::size_t position) {
                 std::memcpy(staging + (position - begin), part.data(), part.size());
               });
    }
    for (int peer = 0; peer < group.size(); ++peer) {
      const auto& outputs = call.theirs[static_cast<std::size_t>(peer)];
      if (peer == group.index() || outputs.empty()) continue;
      if (direct(peer)) {
        if (phase != 0) continue;
        const std::byte* source = group.PeerBuffer(peer);
        ForRange(outputs, 0, TotalBytes(outputs), [&](Bytes part, std::size_t position) {
          std::memcpy(part.data(), source + position, part.size());
        });
      } else if (phase > 0) {
        const std::size_t first = begin - piece;
        const std::byte* staging = group.staging(peer, phase - 1);
        ForRange(outputs, first, std::min(begin, TotalBytes(outputs)),
                 [&](Bytes part, std::size_t position) {
                   std::memcpy(part.data(), staging + (position - first), part.size());
                 });
      }
    }
    if (phase < pieces || any_direct) group.Sync();
  }
}

}  // namespace orca::comm
