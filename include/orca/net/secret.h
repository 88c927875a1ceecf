// The 256-bit key that proves that a process belongs to a job.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "orca/core/export.h"

namespace orca::net {

/// One secret a job. Copies are wiped when they are destroyed; it is never logged.
class ORCA_API Secret {
 public:
  static constexpr int kBytes = 32;

  /// A fresh one from the kernel.
  static Secret Random();
  /// Reads 64 hex digits from `path`, which must belong to this user and be readable by nobody
  /// else.
  static Secret FromFile(const std::string& path);
  /// Parses 64 hex digits.
  static Secret FromHex(const std::string& hex);

  Secret() = default;
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  std::string ToHex() const;
  const std::array<std::uint8_t, kBytes>& bytes() const { return bytes_; }

 private:
  std::array<std::uint8_t, kBytes> bytes_{};
};

}  // namespace orca::net
