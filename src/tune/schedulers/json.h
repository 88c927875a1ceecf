// JSON of the schedulers' states and parameters.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace orca::tune {

using Json = nlohmann::json;

/// JSON has no infinities.
inline Json ToJson(double value) {
  if (std::isfinite(value)) return value;
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

inline double ToDouble(const Json& value) {
  if (!value.is_string()) return value.get<double>();
  const auto text = value.get<std::string>();
  using Limits = std::numeric_limits<double>;
  if (text == "inf") return Limits::infinity();
  return text == "-inf" ? -Limits::infinity() : Limits::quiet_NaN();
}

}  // namespace orca::tune
