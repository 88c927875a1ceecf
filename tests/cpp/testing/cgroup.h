// A memory or process limit around a child, by the kernel's own means.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace orca::testing {

/// A cgroup (v1) of one controller, removed when the object goes: its processes must have ended by
/// then.
class Cgroup {
 public:
  /// Makes a group with `file` set to `value`; nothing, with the reason printed, where that is not
  /// permitted.
  static std::optional<Cgroup> Create(const std::string& controller, const std::string& file,
                                      std::size_t value);
  Cgroup(Cgroup&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  ~Cgroup();

  const std::string& path() const { return path_; }
  /// Moves the calling process in; returns whether it worked.
  bool Enter() const;

 private:
  explicit Cgroup(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace orca::testing
