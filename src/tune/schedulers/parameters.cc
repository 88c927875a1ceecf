#include "tune/schedulers/parameters.h"

#include <fmt/format.h>

#include <utility>

#include "orca/core/error.h"

namespace orca::tune {

Parameters::Parameters(std::string scheduler, std::string_view text)
    : scheduler_(std::move(scheduler)),
      given_(Json::parse(text.empty() ? "{}" : text, nullptr, false)) {
  if (given_.is_null()) given_ = Json::object();
  if (!given_.is_object())
    throw Error(
        Code::kInvalidArgument,
        fmt::format("the parameters of scheduler {} are {}; give a JSON object", scheduler_, text));
}

void Parameters::Refuse(const char* name, const std::string& expected) const {
  throw Error(Code::kInvalidArgument,
              fmt::format("{} {} of scheduler {} is not {}", name,
                          given_.contains(name) ? given_[name].dump() : "(not given)", scheduler_,
                          expected));
}

Json Parameters::Any(const char* name) {
  known_.insert(name);
  return given_.contains(name) ? given_[name] : Json();
}

std::int64_t Parameters::Int(const char* name, std::int64_t fallback, std::int64_t least) {
  const auto value = Any(name);
  if (value.is_null()) return fallback;
  const std::string expected = fmt::format("a whole number from {} on", least);
  // A double may be whole too: 4.0.
  if (!value.is_number() || value.get<double>() < static_cast<double>(least) ||
      value.get<double>() > 1e15 ||
      value.get<double>() != static_cast<double>(value.get<std::int64_t>()))
    Refuse(name, expected);
  return value.get<std::int64_t>();
}

double Parameters::Number(const char* name, double fallback, double least, double most) {
  const auto value = Any(name);
  if (value.is_null()) return fallback;
  if (!value.is_number() || !(value.get<double>() >= least) || !(value.get<double>() <= most))
    Refuse(name, fmt::format("a number from {} to {}", least, most));
  return value.get<double>();
}

bool Parameters::Bool(const char* name, bool fallback) {
  const auto value = Any(name);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) Refuse(name, "true or false");
  return value.get<bool>();
}

std::string Parameters::Text(const char* name, const std::string& fallback) {
  const auto value = Any(name);
  if (value.is_null()) return fallback;
  if (!value.is_string()) Refuse(name, "a string");
  return value.get<std::string>();
}

std::vector<std::string> Parameters::Unknown() const {
  std::vector<std::string> unknown;
  for (const auto& [name, value] : given_.items())
    if (!known_.contains(name)) unknown.push_back(name);
  return unknown;
}

}  // namespace orca::tune
