#include "tune/schedulers/make.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "orca/core/error.h"

namespace orca::tune {
namespace {

using Maker = MadeScheduler (*)(Parameters& parameters, const SchedulerOptions& options);

MadeScheduler MakeResourceChanging(Parameters& parameters, const SchedulerOptions& options);

struct Row {
  SchedulerName name;
  Maker make;
};

constexpr std::string_view kAshaDefaults =
    R"({"max_t": 100, "grace_period": 1, "reduction_factor": 4, "brackets": 1, "form": "stopping"})";
constexpr std::string_view kHyperBandDefaults =
    R"({"max_t": 81, "reduction_factor": 3, "stop_last_trials": true, "ray_milestones": false})";
constexpr std::string_view kMedianDefaults =
    R"({"grace_period": 60, "min_samples_required": 3, "min_time_slice": 0, "hard_stop": true})";

const std::vector<Row>& Rows() {
  static const std::vector<Row> rows{
      {{"fifo", "{}", "every trial runs to its end"}, MakeFifo},
      {{"async_hyperband", kAshaDefaults, "asynchronous successive halving"}, MakeAsha},
      {{"asynchyperband", kAshaDefaults, "async_hyperband"}, MakeAsha},
      {{"hyperband", kHyperBandDefaults, "brackets of successive halving"}, MakeHyperBand},
      {{"hb_bohb", kHyperBandDefaults, "hyperband, the largest bracket first"}, MakeBohbHyperBand},
      {{"median_stopping_rule", kMedianDefaults, "stops what is below the median of the means"},
       MakeMedianStopping},
      {{"medianstopping", kMedianDefaults, "median_stopping_rule"}, MakeMedianStopping},
      {{"pbt",
        R"({"perturbation_interval": 60, "burn_in_period": 0, "quantile_fraction": 0.25, )"
        R"("resample_probability": 0.25, "synch": false, "hyperparam_mutations": null})",
        "population based training"},
       MakePbt},
      {{"pbt_replay", R"({"policy_file": null})", "one line of descent of pbt, again"},
       MakePbtReplay},
      {{"pb2",
        R"({"perturbation_interval": 60, "burn_in_period": 0, "quantile_fraction": 0.25, )"
        R"("resample_probability": 0.25, "synch": false, "hyperparam_bounds": null})",
        "runs as pbt"},
       MakePb2},
      {{"resource_changing", R"({"base_scheduler": "fifo"})", "runs as its base scheduler"},
       MakeResourceChanging},
  };
  return rows;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return lower;
}

MadeScheduler MakeChecked(std::string_view given_name, std::string_view text,
                          const SchedulerOptions& options) {
  std::string name = Lower(given_name);
  if (name.empty() || name == "none") name = "fifo";
  const auto& rows = Rows();
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name.name == name; });
  if (row == rows.end()) {
    std::vector<std::string_view> known;
    for (const auto& each : rows) known.push_back(each.name.name);
    throw Error(Code::kInvalidArgument, fmt::format("there is no scheduler \"{}\"; known are {}",
                                                    given_name, fmt::join(known, ", ")));
  }
  Parameters parameters(name, text);
  MadeScheduler made = row->make(parameters, options);
  const auto unknown = parameters.Unknown();
  if (unknown.empty()) return made;
  const std::string message = fmt::format(
      "scheduler {} has no parameter {}; it has {}", name, fmt::join(unknown, ", "),
      parameters.known().empty() ? "none" : fmt::to_string(fmt::join(parameters.known(), ", ")));
  if (!options.ignore_unknown) throw Error(Code::kInvalidArgument, message);
  made->AddNote(message);
  return made;
}

// base_scheduler is a name, or an object with "name" and the parameters of that.
MadeScheduler MakeResourceChanging(Parameters& parameters, const SchedulerOptions& options) {
  Json base = parameters.Any("base_scheduler");
  std::string name = "fifo";
  if (base.is_object() && base.contains("name") && base["name"].is_string()) {
    name = base["name"].get<std::string>();
    base.erase("name");
  } else if (base.is_string()) {
    name = base.get<std::string>();
    base = Json::object();
  } else if (base.is_null()) {
    base = Json::object();
  } else {
    parameters.Refuse("base_scheduler", "a name, or an object with \"name\" and parameters");
  }
  if (Lower(name) == "resource_changing")
    parameters.Refuse("base_scheduler", "another scheduler than resource_changing");
  MadeScheduler made = MakeChecked(name, base.dump(), options);
  made->AddNote(fmt::format(
      "scheduler resource_changing runs as {}: the resources of a trial stay as they are", name));
  return made;
}

}  // namespace

const std::vector<SchedulerName>& SchedulerNames() {
  static const std::vector<SchedulerName> names = [] {
    std::vector<SchedulerName> all;
    for (const auto& row : Rows()) all.push_back(row.name);
    return all;
  }();
  return names;
}

std::unique_ptr<Scheduler> MakeScheduler(std::string_view name, std::string_view parameters,
                                         const SchedulerOptions& options) {
  return MakeChecked(name, parameters, options);
}

}  // namespace orca::tune
