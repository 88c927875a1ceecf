#include "orca/learn/commit_log.h"

#include <fmt/format.h>

#include <cstring>
#include <new>

#include "learn/stamps.h"
#include "orca/core/crc32c.h"
#include "orca/core/error.h"

namespace orca::learn {

/// Commits with even and with odd numbers have a place each.
struct alignas(64) CommitLog::Place {
  Commit commit;
  std::uint32_t checksum = 0;
};

namespace {

std::uint32_t ChecksumOf(const Commit& commit) { return Crc32c(&commit, sizeof(Commit)); }

}  // namespace

CommitLog::CommitLog(std::span<std::byte> block) : block_(block) {
  static_assert(2 * sizeof(Place) <= kBlockSize);
  if (block_.size() < kBlockSize)
    throw Error(Code::kInvalidArgument,
                fmt::format("the block has {} bytes; {} are needed", block_.size(), kBlockSize));
}

CommitLog::Place& CommitLog::At(std::uint64_t number) const {
  return *std::launder(reinterpret_cast<Place*>(block_.data() + number % 2 * sizeof(Place)));
}

void CommitLog::Write(const Commit& commit) {
  const auto last = Read();
  if (commit.number == 0 || (last && commit.number != last->number + 1))
    throw Error(Code::kInvalidArgument, fmt::format("commit {} does not follow commit {}",
                                                    commit.number, last ? last->number : 0));
  Place& place = At(commit.number);
  place.commit = commit;
  Stamp();
  place.checksum = ChecksumOf(commit);  // What is half written has another one.
}

std::optional<Commit> CommitLog::Read() const {
  std::optional<Commit> last;
  for (std::uint64_t i = 0; i < 2; ++i) {
    Place place;
    std::memcpy(static_cast<void*>(&place), &At(i), sizeof(Place));
    const bool whole = place.commit.number > 0 && place.checksum == ChecksumOf(place.commit);
    if (whole && (!last || place.commit.number > last->number)) last = place.commit;
  }
  return last;
}

}  // namespace orca::learn
