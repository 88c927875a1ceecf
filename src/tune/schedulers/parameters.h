// The parameters of a scheduler, checked.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tune/schedulers/json.h"

namespace orca::tune {

/// Reads a JSON object and remembers what was asked for.
class Parameters {
 public:
  Parameters(std::string scheduler, std::string_view text);

  /// At least `least`.
  std::int64_t Int(const char* name, std::int64_t fallback, std::int64_t least);
  /// In [least, most].
  double Number(const char* name, double fallback, double least, double most);
  bool Bool(const char* name, bool fallback);
  std::string Text(const char* name, const std::string& fallback);
  /// Null when it is not given.
  Json Any(const char* name);

  /// Names that were given and not asked for.
  std::vector<std::string> Unknown() const;
  const std::set<std::string>& known() const { return known_; }
  const std::string& scheduler() const { return scheduler_; }

  [[noreturn]] void Refuse(const char* name, const std::string& expected) const;

 private:
  std::string scheduler_;
  Json given_;
  std::set<std::string> known_;
};

}  // namespace orca::tune
