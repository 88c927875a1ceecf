// Where the next trial of a study looks: ask and tell.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "orca/core/export.h"
#include "orca/tune/space.h"
#include "orca/tune/trial.h"

namespace orca::tune {

/// What a sampler knows of a trial.
struct Observation {
  std::int64_t number = 0;
  Point point = {};
  TrialState state = TrialState::kRunning;
  double loss = 0;        ///< Smaller is better. Of a pruned one: its last report.
  std::int64_t step = 0;  ///< Of a pruned one: where that was; 0: it reported nothing.
};

/// Proposes points.
///
/// A proposal is a function of the seed, the trial's number and the observations, whatever the
/// order in which trials ended. One thread uses a sampler.
class ORCA_API Sampler {
 public:
  Sampler() = default;
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  virtual ~Sampler() = default;

  /// The point of trial `number`.
  virtual Point Ask(std::int64_t number) = 0;
  /// Takes in a trial: all are told first in the order of their numbers, most as running, and again
  /// when they have ended, those that are paused also as pruned at that step.
  virtual void Tell(const Observation& trial) = 0;
  /// Whether its proposals depend on what it is told.
  virtual bool learns() const { return true; }
};

struct SearchOptions {
  std::uint64_t seed = 0;
  /// Of the algorithm, e.g. {"n_initial_points", 20}; unknown ones are errors that list the known
  /// ones.
  std::map<std::string, double> parameters;
  std::int64_t budget = 0;  ///< How many trials there will be; 0: not known. For "auto".
};

/// A sampler, and what to say about it.
struct Search {
  std::unique_ptr<Sampler> sampler;
  std::string algorithm;  ///< What runs: "tpe".
  std::string note;  ///< When that is not what the name says, or was chosen: one line. Else empty.
};

/// The sampler of a name, in any case: random, grid, sobol, tpe, gp, cmaes, auto, and all names of
/// Ray Tune's searchers. Throws kInvalidArgument for unknown names and parameters, and for grid
/// parameters in a space whose sampler cannot take them.
ORCA_API Search MakeSearch(const std::string& name, const Space& space,
                           const SearchOptions& options);

/// All names that MakeSearch knows, sorted.
ORCA_API std::vector<std::string> SearchNames();
/// The names of parameters that `name` knows, sorted.
ORCA_API std::vector<std::string> SearchParameters(const std::string& name);
/// Parameters that the original of `name` has and that have no effect here.
ORCA_API std::vector<std::string> IgnoredSearchParameters(const std::string& name);

}  // namespace orca::tune
