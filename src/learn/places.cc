#include "orca/learn/places.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "orca/core/error.h"

namespace orca::learn {

/// The last death; the places follow.
struct Places::Marks {
  std::uint64_t rank;
  std::uint64_t place;  // 0: nobody's
  std::uint64_t times;
};

std::size_t Places::BlockSize(int world) {
  return sizeof(Marks) + static_cast<std::size_t>(world) * sizeof(std::uint64_t);
}

Places::Places(std::span<std::byte> block, int world) : block_(block), world_(world) {
  if (block_.size() < BlockSize(world))
    throw Error(Code::kInvalidArgument, fmt::format("the block has {} bytes; {} are needed",
                                                    block_.size(), BlockSize(world)));
}

Places::Marks& Places::marks() const {
  return *std::launder(reinterpret_cast<Marks*>(block_.data()));
}

std::span<std::uint64_t> Places::places() const {
  auto* const first = reinterpret_cast<std::uint64_t*>(block_.data() + sizeof(Marks));
  return {std::launder(first), static_cast<std::size_t>(world_)};
}

void Places::Enter(int rank, std::uint64_t number) {
  places()[static_cast<std::size_t>(rank)] = number;
}

std::optional<Places::Death> Places::Find(const std::vector<bool>& are_new) const {
  std::optional<Death> found;
  for (std::size_t rank = 0; rank < std::min(are_new.size(), places().size()); ++rank) {
    if (!are_new[rank] || places()[rank] == 0) continue;
    if (found) return std::nullopt;
    found = Death{.rank = static_cast<int>(rank), .place = places()[rank]};
    if (marks().rank == rank && marks().place == found->place)
      found->times = static_cast<int>(marks().times) + 1;
  }
  return found;
}

void Places::Settle(const std::optional<Death>& death) {
  const Death last = death.value_or(Death{});
  marks() = {.rank = static_cast<std::uint64_t>(last.rank),
             .place = last.place,
             .times = static_cast<std::uint64_t>(last.times)};
  std::ranges::fill(places(), 0);
}

}  // namespace orca::learn
