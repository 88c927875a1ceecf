#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "runtime/huge_pages.h"

namespace orca::runtime {
namespace {

// MADV_COLLAPSE, which not all headers have yet.
constexpr int kCollapse = 25;
// Every call waits for all processors; a longer one keeps a fork waiting.
constexpr std::size_t kPieceBytes = 8 * kHugeBytes;

}  // namespace

void HugePages::Find() {
  pieces_.clear();
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::string access;
    std::string offset;
    std::string device;
    std::string inode;
    std::string name;
    words >> std::hex >> begin >> dash >> end >> access >> offset >> device >> inode >> name;
    // What malloc and Python's allocator have: no file, and not a stack.
    if (!words.eof() || access != "rw-p" || inode != "0" || (!name.empty() && name != "[heap]"))
      continue;
    begin = (begin + kHugeBytes - 1) / kHugeBytes * kHugeBytes;
    end = end / kHugeBytes * kHugeBytes;
    for (; begin < end; begin += kPieceBytes)
      pieces_.emplace_back(reinterpret_cast<std::byte*>(begin),
                           std::min<std::size_t>(kPieceBytes, end - begin));
  }
}

void HugePages::MoveOne() {
  const std::span<std::byte> piece = pieces_.back();
  pieces_.pop_back();
  // It fails where the kernel does not know it, has no huge page left, or finds nothing written.
  (void)::madvise(piece.data(), piece.size(), kCollapse);
}

}  // namespace orca::runtime
