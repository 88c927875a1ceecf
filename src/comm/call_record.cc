#include "comm/call_record.h"

#include <fmt/format.h>

namespace orca::comm {

std::string Describe(const CallRecord& record, std::uint64_t sequence) {
  std::string text = fmt::format("{} #{}", Name(record.op), sequence);
  if (record.op == Op::kBarrier) return text;
  // Where parts may differ by rank there is no common count; a rank's own part says more.
  if (record.count != 0 || record.part == 0) {
    text += fmt::format(" of {} {}", record.count, Name(record.dtype));
  } else {
    text += fmt::format(" of {} bytes of {}", record.part, Name(record.dtype));
  }
  switch (record.op) {
    case Op::kAllReduce:
    case Op::kReduceScatter:
      return text + fmt::format(" ({})", Name(record.reduce));
    case Op::kReduce:
      return text + fmt::format(" ({}, root {})", Name(record.reduce), record.root);
    case Op::kBroadcast:
    case Op::kGather:
    case Op::kScatter:
      return text + fmt::format(" (root {})", record.root);
    default:
      return text;
  }
}

std::string DescribeMismatch(const std::string& mine, const CallRecord& my_record,
                             const std::string& theirs, const CallRecord& their_record,
                             std::uint64_t sequence) {
  return fmt::format(
      "the ranks made different calls: {} called {}, but {} called {}; every rank must make the "
      "same calls in the "
      "same order with the same sizes",
      mine, Describe(my_record, sequence), theirs, Describe(their_record, sequence));
}

}  // namespace orca::comm
