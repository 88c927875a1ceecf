// How PBT changes a configuration.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "orca/tune/scheduler.h"
#include "tune/schedulers/json.h"
#include "tune/schedulers/random.h"

namespace orca::tune {

/// The changes of "hyperparam_mutations": a list of values, {"lower": l, "upper": u, "log": bool,
/// "whole": bool}, null where SchedulerOptions::draws has the key, or an object of more of these.
class Mutations {
 public:
  Mutations(const Json& given, double resample, const SchedulerOptions& options);

  /// What a clone of trial `source` gets.
  Json Explore(Json config, std::int64_t source, Draws& draws) const;

 private:
  using Draw = std::function<std::string(std::uint64_t random)>;
  struct Mutation {
    std::string name;  // As studies call it; in other configurations it is a way, with '/'.
    Json::json_pointer way;
    Json values;  // a list; else null
    Draw draw;    // for what is no list
    double lower;
    double upper;
    bool whole = false;  // whatever the value was
  };

  void Add(const Json& given, const std::string& path, const SchedulerOptions& options);
  Json Change(const Mutation& mutation, const Json& old, Draws& draws) const;

  double resample_;
  std::vector<Mutation> mutations_;
  std::function<std::string(const std::string& config, std::int64_t source)> explore_;
};

}  // namespace orca::tune
