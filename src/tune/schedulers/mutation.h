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

/// The changes of "hyperparam_mutations": a list of values, {"lower": l, "upper": u, "log": bool},
/// null where SchedulerOptions::draws has the key, or an object of more of these.
class Mutations {
 public:
  Mutations(const Json& given, double resample, const SchedulerOptions& options);

  Json Explore(Json config, Draws& draws) const;

 private:
  using Draw = std::function<std::string(std::uint64_t random)>;
  struct Mutation {
    Json::json_pointer key;
    Json values;  // a list; else null
    Draw draw;    // for what is no list
    double lower;
    double upper;
  };

  void Add(const Json& given, const std::string& path, const SchedulerOptions& options);
  Json Change(const Mutation& mutation, const Json& old, Draws& draws) const;

  double resample_;
  std::vector<Mutation> mutations_;
  std::function<std::string(const std::string& config)> explore_;
};

}  // namespace orca::tune
