#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "comm/local_ops.h"

namespace orca::comm {
namespace {

constexpr std::size_t kSizesBuffer = 2;  // the pieces alternate between buffers 0 and 1

void CheckSizes(const LocalGroup& group, const LocalExchange& call) {
  for (int peer = 0; peer < group.size(); ++peer) {
    std::uint64_t sent = 0;
    std::memcpy(
        &sent,
        group.staging(peer, kSizesBuffer) + static_cast<std::size_t>(group.index()) * sizeof(sent),
        sizeof(sent));
    const std::size_t wanted = call.recvs[static_cast<std::size_t>(peer)].size();
    if (sent == wanted) continue;
    throw Error(Code::kMismatch,
                fmt::format("{}: local rank {} sends {} bytes to local rank {}, which expects {}; "
                            "give both ranks the "
                            "same size for this pair",
                            Name(group.record(peer).op), peer, sent, group.index(), wanted));
  }
}

}  // namespace

void LocalExchangeAll(LocalGroup& group, const LocalExchange& call) {
  const auto me = static_cast<std::size_t>(group.index());
  const auto size = static_cast<std::size_t>(group.size());
  const std::size_t piece = group.staging_bytes() / size / 64 * 64;
  // record.part is what a rank sends to one peer at most, so all count the same phases.
  std::size_t longest = 0;
  for (int peer = 0; peer < group.size(); ++peer)
    longest = std::max<std::size_t>(longest, group.record(peer).part);
  const std::size_t pieces = (longest + piece - 1) / piece;
  for (std::size_t peer = 0; peer < size; ++peer) {
    const std::uint64_t bytes = call.sends[peer].size();
    std::memcpy(group.staging(group.index(), kSizesBuffer) + peer * sizeof(bytes), &bytes,
                sizeof(bytes));
  }
  for (std::size_t phase = 0; phase <= pieces; ++phase) {
    const std::size_t begin = phase * piece;
    for (std::size_t peer = 0; peer < size; ++peer) {
      const ConstBytes data = call.sends[peer];
      if (peer == me || begin >= data.size()) continue;
      std::memcpy(group.staging(group.index(), phase & 1) + peer * piece, data.data() + begin,
                  std::min(piece, data.size() - begin));
    }
    if (phase == 0) {
      group.Sync();
      CheckSizes(group, call);
      if (!call.recvs[me].empty() && call.recvs[me].data() != call.sends[me].data()) {
        std::memmove(call.recvs[me].data(), call.sends[me].data(), call.recvs[me].size());
      }
      continue;
    }
    const std::size_t first = begin - piece;
    for (std::size_t peer = 0; peer < size; ++peer) {
      const Bytes data = call.recvs[peer];
      if (peer == me || first >= data.size()) continue;
      std::memcpy(data.data() + first,
                  group.staging(static_cast<int>(peer), (phase - 1) & 1) + me * piece,
                  std::min(piece, data.size() - first));
    }
    if (phase < pieces) group.Sync();
  }
}

}  // namespace orca::comm
