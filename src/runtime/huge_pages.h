// The memory of a process that forks, in huge pages.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace orca::runtime {

/// Moves this process's own memory into huge pages, piece by piece. A fork then copies one entry
/// for two megabytes in the place of 512, and the child's end frees as few; what a child writes to
/// is still copied in small pages. With PyTorch imported that is half of what a fork costs.
///
/// It is a matter of speed only: a kernel without MADV_COLLAPSE (before 6.1), or without free
/// memory in one piece, leaves all as it is. Not thread-safe.
class HugePages {
 public:
  /// Notes what there is to move now.
  void Find();
  /// Whether there is more.
  bool pending() const { return !pieces_.empty(); }
  /// Moves one piece: some milliseconds.
  void MoveOne();

 private:
  std::vector<std::span<std::byte>> pieces_;  ///< Whole huge pages.
};

inline constexpr std::size_t kHugeBytes = std::size_t{2} << 20;

}  // namespace orca::runtime
