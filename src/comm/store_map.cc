#include "comm/store_map.h"

#include <fmt/format.h>

#include <algorithm>

#include "orca/core/error.h"

namespace orca::comm {
namespace {

// Keys may hold any bytes; messages show a readable beginning.
std::string Readable(const std::string& key) {
  constexpr std::size_t kShown = 80;
  std::string text;
  for (const char c : key.substr(0, kShown)) {
    const bool plain = c >= ' ' && c <= '~' && c != '"' && c != '\\';
    text += plain ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return key.size() > kShown ? text + "..." : text;
}

}  // namespace

void CheckStoreKey(const std::string& key) {
  if (!key.empty() && key.size() <= kMaxStoreKey) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("key \"{}\" has {} bytes; a store takes keys of 1 to {}", Readable(key),
                          key.size(), kMaxStoreKey));
}

void CheckStoreValue(const std::string& key, const std::string& value) {
  if (value.size() <= kMaxStoreValue) return;
  throw Error(Code::kInvalidArgument, fmt::format("the value of key \"{}\" has {} bytes; a store "
                                                  "takes up to {}, send more with a collective",
                                                  Readable(key), value.size(), kMaxStoreValue));
}

Deadline StoreDeadline(std::chrono::milliseconds timeout) {
  using std::chrono::milliseconds;
  return Deadline::After(
      std::clamp(timeout, milliseconds(0), milliseconds(std::chrono::hours(24 * 365))));
}

void ThrowNotSet(const std::string& store, const std::string& key,
                 std::chrono::milliseconds timeout) {
  throw Error(
      Code::kTimeout,
      fmt::format(
          "key \"{}\" was not set in {} within {} ms; the rank that sets it has not come this far",
          Readable(key), store, timeout.count()));
}

void StoreMap::Set(const std::string& key, const std::string& value) {
  {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    ++version_;
  }
  changed_.notify_all();
}

std::optional<std::string> StoreMap::Find(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::string> StoreMap::WaitFor(const std::string& key,
                                             const Deadline& deadline) const {
  std::unique_lock lock(mutex_);
  const bool set = changed_.wait_until(lock, deadline.at(), [&] { return values_.contains(key); });
  return set ? std::optional(values_.at(key)) : std::nullopt;
}

std::uint64_t StoreMap::version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}

}  // namespace orca::comm
