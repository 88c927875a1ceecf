// What the stores have in common: limits, messages, and a map that can be waited on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "orca/core/deadline.h"

namespace orca::comm {

inline constexpr std::size_t kMaxStoreKey = 1024;
inline constexpr std::size_t kMaxStoreValue = 1024 * 1024;

/// Throw kInvalidArgument unless a store takes it.
void CheckStoreKey(const std::string& key);
void CheckStoreValue(const std::string& key, const std::string& value);

/// A deadline for a timeout of any size: negative ones are over, endless ones become a year.
Deadline StoreDeadline(std::chrono::milliseconds timeout);

/// `store` says which one, e.g. "the store at 10.0.0.7:29500".
[[noreturn]] void ThrowNotSet(const std::string& store, const std::string& key,
                              std::chrono::milliseconds timeout);

/// Keys, values, and threads that wait for them. Any thread.
class StoreMap {
 public:
  void Set(const std::string& key, const std::string& value);
  std::optional<std::string> Find(const std::string& key) const;
  /// Waits until `key` is set; empty when the deadline passes first.
  std::optional<std::string> WaitFor(const std::string& key, const Deadline& deadline) const;
  /// Grows with every Set.
  std::uint64_t version() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::unordered_map<std::string, std::string> values_;  // Guarded by mutex_.
  std::uint64_t version_ = 0;                            // Guarded by mutex_.
};

}  // namespace orca::comm
