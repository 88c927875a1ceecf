#include "tune/schedulers/mutation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "orca/core/error.h"

namespace orca::tune {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

[[noreturn]] void Refuse(const std::string& key, const std::string& why) {
  throw Error(Code::kInvalidArgument,
              fmt::format("the mutation of {} {}; give a list of values, a range {{\"lower\": l, "
                          "\"upper\": u}} or a function",
                          key, why));
}

struct Range {
  double lower;
  double upper;
  bool log;
};

Range ReadRange(const std::string& key, const Json& given) {
  if (!given.at("lower").is_number() || !given["upper"].is_number())
    Refuse(key, "has bounds that are no numbers");
  const Range range{given["lower"].get<double>(), given["upper"].get<double>(),
                    given.value("log", false)};
  if (!(range.lower < range.upper))
    Refuse(key, fmt::format("has lower {} and upper {}", range.lower, range.upper));
  if (range.log && range.lower <= 0)
    Refuse(key, fmt::format("has lower {} on a log scale", range.lower));
  return range;
}

Json DrawFrom(const Range& range, std::uint64_t random) {
  const double u = static_cast<double>(random >> 11U) * 0x1p-53;
  if (!range.log) return range.lower + u * (range.upper - range.lower);
  const double low = std::log(range.lower);
  return std::exp(low + u * (std::log(range.upper) - low));
}

}  // namespace

Mutations::Mutations(const Json& given, double resample, const SchedulerOptions& options)
    : resample_(resample), explore_(options.explore) {
  if (!given.is_null() && !given.is_object()) Refuse("(all)", "is not an object of keys");
  if (given.is_object()) Add(given, "", options);
}

void Mutations::Add(const Json& given, const std::string& path, const SchedulerOptions& options) {
  for (const auto& [name, value] : given.items()) {
    const std::string key = path.empty() ? name : path + "/" + name;
    Json::json_pointer pointer;
    for (std::size_t at = 0; at <= key.size();) {
      const std::size_t end = std::min(key.find('/', at), key.size());
      pointer /= key.substr(at, end - at);
      at = end + 1;
    }
    Mutation mutation{.name = key,
                      .way = pointer,
                      .values = nullptr,
                      .draw = {},
                      .lower = -kInfinity,
                      .upper = kInfinity};
    if (value.is_array()) {
      if (value.empty()) Refuse(key, "is an empty list");
      mutation.values = value;
    } else if (value.is_object() && value.contains("lower") && value.contains("upper")) {
      const Range range = ReadRange(key, value);
      mutation.lower = range.lower;
      mutation.upper = range.upper;
      mutation.whole = value.value("whole", false);
      mutation.draw = [range](std::uint64_t random) { return DrawFrom(range, random).dump(); };
    } else if (value.is_object()) {
      Add(value, key, options);
      continue;
    } else if (value.is_null() && options.draws.contains(key)) {
      mutation.draw = options.draws.at(key);
    } else {
      Refuse(key, "is " + value.dump());
    }
    mutations_.push_back(std::move(mutation));
  }
}

Json Mutations::Change(const Mutation& mutation, const Json& old, Draws& draws) const {
  const bool redraws = draws.Uniform() < resample_;
  if (mutation.values.is_array()) {
    const auto found = std::find(mutation.values.begin(), mutation.values.end(), old);
    const auto size = static_cast<std::int64_t>(mutation.values.size());
    if (redraws || found == mutation.values.end())
      return mutation.values[draws.Index(mutation.values.size())];
    const std::int64_t next = found - mutation.values.begin() + (draws.Index(2) == 0 ? -1 : 1);
    return mutation.values[static_cast<std::size_t>(std::clamp<std::int64_t>(next, 0, size - 1))];
  }
  const std::uint64_t random = draws.Bits();
  const bool is_whole = mutation.whole || old.is_number_integer();
  Json fresh = redraws || !old.is_number()
                   ? Json::parse(mutation.draw(random), nullptr, false)
                   : Json(old.get<double>() * (random % 2 == 0 ? 1.2 : 0.8));
  if (!fresh.is_number()) return fresh.is_discarded() ? old : fresh;
  const double inside = std::clamp(fresh.get<double>(), mutation.lower, mutation.upper);
  if (is_whole) return static_cast<std::int64_t>(inside);
  return inside;
}

Json Mutations::Explore(Json config, std::int64_t source, Draws& draws) const {
  for (const auto& mutation : mutations_) {
    const bool is_way = !config.contains(mutation.name) && config.contains(mutation.way);
    Json& place = is_way ? config[mutation.way] : config[mutation.name];
    place = Change(mutation, place, draws);
  }
  if (!explore_) return config;
  Json explored = Json::parse(explore_(config.dump(), source), nullptr, false);
  if (!explored.is_object())
    throw Error(Code::kInvalidArgument,
                "custom_explore_fn gave no configuration; return the changed dictionary");
  return explored;
}

}  // namespace orca::tune
