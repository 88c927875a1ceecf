#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <iterator>
#include <utility>

#include "orca/core/error.h"
#include "orca/tune/sampler.h"
#include "tune/cma.h"
#include "tune/plain_samplers.h"
#include "tune/tpe.h"

namespace orca::tune {
namespace {

// A name of search_alg: what runs under it, with which defaults.
struct Entry {
  const char* name;
  const char* algorithm;
  std::map<std::string, double> defaults;   // Of the parameters of the algorithm.
  std::map<std::string, std::string> also;  // Names the original has for some of them.
  const char* note;                         // What differs from the original, if anything does.
};

const std::vector<Entry>& Entries() {
  static const std::vector<Entry> entries = {
      {"random", "random", {}, {}, ""},
      {"variant_generator", "random", {}, {}, ""},
      {"grid", "grid", {}, {}, ""},
      {"sobol", "sobol", {}, {}, ""},
      {"tpe", "tpe", {}, {}, ""},
      {"optuna", "tpe", {}, {}, ""},
      {"cmaes", "cmaes", {}, {}, ""},
      {"hyperopt",
       "tpe",
       {{"n_startup_trials", 20}, {"gamma", 0.25}, {"gamma_of_root", 1}, {"multivariate", 0}},
       {{"n_initial_points", "n_startup_trials"}, {"random_state_seed", "seed"}},
       ""},
  };
  return entries;
}

// Parameters that mean the same for every name.
const std::vector<std::string> kCommon = {"seed", "max_concurrent"};

const std::map<std::string, std::vector<std::string>>& AlgorithmParameters() {
  static const std::map<std::string, std::vector<std::string>> parameters = {
      {"random", {"constant_grid_search", "random_state"}},
      {"grid", {}},
      {"sobol", {}},
      {"tpe",
       {"n_startup_trials", "n_ei_candidates", "multivariate", "gamma", "gamma_of_root",
        "prior_weight"}},
      {"cmaes", {"popsize", "sigma0"}},
  };
  return parameters;
}

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return text;
}

const Entry& Find(const std::string& name) {
  for (const Entry& entry : Entries()) {
    if (Lower(name) == entry.name) return entry;
  }
  throw Error(Code::kInvalidArgument, fmt::format("search_alg '{}' is not known; known: {}", name,
                                                  fmt::join(SearchNames(), ", ")));
}

// The parameters of a search: what the user gave over what the name's defaults are.
class Given {
 public:
  Given(const Entry& entry, const SearchOptions& options) : entry_(entry), values_(entry.defaults) {
    const std::vector<std::string> known = SearchParameters(entry.name);
    for (const auto& [name, value] : options.parameters) {
      if (!std::binary_search(known.begin(), known.end(), name)) {
        throw Error(Code::kInvalidArgument,
                    fmt::format("search_alg '{}' has no parameter '{}'; known: {}", entry.name,
                                name, fmt::join(known, ", ")));
      }
      const auto other = entry.also.find(name);
      values_[other == entry.also.end() ? name : other->second] = value;
    }
  }

  double Number(const std::string& name, double otherwise) const {
    const auto found = values_.find(name);
    return found == values_.end() ? otherwise : found->second;
  }

  double Positive(const std::string& name, double otherwise) const {
    const double value = Number(name, otherwise);
    if (value > 0) return value;
    throw Error(Code::kInvalidArgument,
                fmt::format("{} {} of search_alg '{}' is not positive", name, value, entry_.name));
  }

  std::int64_t Count(const std::string& name, std::int64_t otherwise) const {
    const double value = Number(name, static_cast<double>(otherwise));
    if (value >= 0 && value <= 1e9) return static_cast<std::int64_t>(value);
    throw Error(Code::kInvalidArgument,
                fmt::format("{} {} of search_alg '{}' is not a count", name, value, entry_.name));
  }

  std::uint64_t Seed(std::uint64_t otherwise) const {
    for (const char* name : {"seed", "random_state"}) {
      if (values_.contains(name)) return static_cast<std::uint64_t>(Count(name, 0));
    }
    return otherwise;
  }

 private:
  const Entry& entry_;
  std::map<std::string, double> values_;
};

std::unique_ptr<Sampler> MakeTpe(const Space& space, const Given& given, std::uint64_t seed) {
  return std::make_unique<TpeSampler>(
      space, TpeOptions{.seed = seed,
                        .startup = std::max<std::int64_t>(1, given.Count("n_startup_trials", 10)),
                        .candidates = std::max<std::int64_t>(1, given.Count("n_ei_candidates", 24)),
                        .multivariate = given.Number("multivariate", 1) != 0,
                        .gamma = given.Positive("gamma", 0.1),
                        .gamma_of_root = given.Number("gamma_of_root", 0) != 0,
                        .prior_weight = given.Positive("prior_weight", 1)});
}

}  // namespace

Search MakeSearch(const std::string& name, const Space& space, const SearchOptions& options) {
  const Entry& entry = Find(name);
  const Given given(entry, options);
  const std::uint64_t seed = given.Seed(options.seed);
  const std::string algorithm = entry.algorithm;
  if (space.has_grid() && algorithm != "random" && algorithm != "grid") {
    throw Error(
        Code::kInvalidArgument,
        fmt::format("Grid search parameters cannot be automatically converted for search_alg "
                    "'{}'; use choice, or search_alg 'random'",
                    entry.name));
  }
  Search search = {.algorithm = algorithm, .note = entry.note};
  if (algorithm == "random") {
    search.sampler = RandomSampler(space, seed, given.Number("constant_grid_search", 0) != 0);
  } else if (algorithm == "grid") {
    search.sampler = GridSampler(space);
  } else if (algorithm == "sobol") {
    search.sampler = SobolSampler(space, seed);
  } else if (algorithm == "cmaes") {
    search.sampler = std::make_unique<CmaSampler>(
        space, CmaOptions{.seed = seed,
                          .population = given.Count("popsize", 0),
                          .sigma = given.Positive("sigma0", CmaOptions().sigma)});
  } else {
    search.sampler = MakeTpe(space, given, seed);
  }
  return search;
}

std::vector<std::string> SearchNames() {
  std::vector<std::string> names;
  for (const Entry& entry : Entries()) names.emplace_back(entry.name);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> SearchParameters(const std::string& name) {
  const Entry& entry = Find(name);
  std::vector<std::string> names = AlgorithmParameters().at(entry.algorithm);
  names.insert(names.end(), kCommon.begin(), kCommon.end());
  for (const auto& [original, ours] : entry.also) names.push_back(original);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace orca::tune
