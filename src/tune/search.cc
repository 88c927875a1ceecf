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
#include "tune/gp.h"
#include "tune/plain_samplers.h"
#include "tune/tpe.h"

namespace orca::tune {
namespace {

// A name of search_alg: what runs under it, with which defaults.
struct Entry {
  const char* name;
  const char* algorithm;
  std::map<std::string, double> defaults = {};   // Of the parameters of the algorithm.
  std::map<std::string, std::string> also = {};  // Names the original has for some of them.
  std::vector<std::string> ignored = {};         // Parameters of the original without effect here.
  const char* original = "";  // What another name stands for, when that does not run.
};

const std::vector<Entry>& Entries() {
  static const std::vector<Entry> entries = {
      {"auto", "auto"},
      {"random", "random"},
      {"variant_generator", "random"},
      {"grid", "grid"},
      {"sobol", "sobol"},
      {"tpe", "tpe"},
      {"gp", "gp"},
      {"cmaes", "cmaes"},
      {"optuna", "tpe", {}, {}, {"sampler", "space"}},
      {"hyperopt",
       "tpe",
       {{"n_startup_trials", 20}, {"gamma", 0.25}, {"gamma_of_root", 1}, {"multivariate", 0}},
       {{"n_initial_points", "n_startup_trials"}, {"random_state_seed", "seed"}},
       {"space"}},
      {"bohb", "tpe", {}, {}, {"bohb_config", "space"}, "BOHB's kernel density estimate"},
      {"zoopt", "tpe", {}, {}, {"algo", "budget", "dim_dict", "parallel_num"}, "ZOOpt's ASRacos"},
      {"blendsearch",
       "tpe",
       {},
       {},
       {"low_cost_partial_config", "cat_hp_cost", "space", "time_budget_s", "num_samples"},
       "FLAML's BlendSearch"},
      {"bayesopt",
       "gp",
       {{"kappa", 2.576}},
       {{"random_search_steps", "n_startup_trials"}, {"random_state", "seed"}},
       {"analysis", "patience", "skip_duplicate", "utility_kwargs", "verbose", "xi", "space"}},
      {"skopt",
       "gp",
       {},
       {},
       {"convert_to_python", "evaluated_rewards", "optimizer", "space"},
       "scikit-optimize's gp_hedge"},
      {"ax",
       "gp",
       {},
       {},
       {"ax_client", "outcome_constraints", "parameter_constraints", "space"},
       "Ax"},
      {"dragonfly", "gp", {}, {}, {"domain", "optimizer", "space"}, "Dragonfly"},
      {"hebo", "gp", {}, {{"random_state_seed", "seed"}}, {"evaluated_rewards", "space"}, "HEBO"},
      {"sigopt",
       "gp",
       {},
       {},
       {"connection", "experiment_id", "name", "observation_budget", "project", "space"},
       "the service SigOpt, which is not called"},
      {"nevergrad", "cmaes", {}, {}, {"budget", "optimizer", "space"}, "Nevergrad"},
      {"cfo", "cmaes", {}, {}, {"cat_hp_cost", "low_cost_partial_config", "space"}, "FLAML's CFO"},
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
      {"gp", {"n_startup_trials", "kappa"}},
      {"cmaes", {"popsize", "sigma0"}},
      {"auto", {}},
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

std::unique_ptr<Sampler> MakeGp(const Space& space, const Given& given, std::uint64_t seed) {
  return std::make_unique<GpSampler>(
      space, GpOptions{.seed = seed,
                       .startup = std::max<std::int64_t>(2, given.Count("n_startup_trials", 10)),
                       .kappa = given.Number("kappa", 0)});
}

// A Gaussian process while it is cheap, then TPE, which has seen the same trials.
class GpThenTpe final : public Sampler {
 public:
  static constexpr std::int64_t kTrialsOfGp = 300;

  GpThenTpe(std::unique_ptr<Sampler> gp, std::unique_ptr<Sampler> tpe)
      : gp_(std::move(gp)), tpe_(std::move(tpe)) {}

  Point Ask(std::int64_t number) override {
    return number < kTrialsOfGp ? gp_->Ask(number) : tpe_->Ask(number);
  }

  void Tell(const Observation& trial) override {
    if (trial.number < kTrialsOfGp) gp_->Tell(trial);
    tpe_->Tell(trial);
  }

 private:
  std::unique_ptr<Sampler> gp_;
  std::unique_ptr<Sampler> tpe_;
};

constexpr std::size_t kMostDimensionsOfGp = 20;
constexpr std::int64_t kTrialsOfCma = 250;  // For each dimension.

Search MakeAuto(const Space& space, const Given& given, std::uint64_t seed, std::int64_t budget) {
  const auto d = static_cast<std::int64_t>(space.size());
  const auto& all = space.parameters();
  const bool has_conditions =
      std::any_of(all.begin(), all.end(), [](const Parameter& p) { return !p.parent.empty(); });
  const bool has_categories =
      std::any_of(all.begin(), all.end(), [](const Parameter& p) { return p.is_category(); });
  const auto say = [](const std::string& algorithm, const std::string& why) {
    return fmt::format("search_alg 'auto' takes {}: {}", algorithm, why);
  };
  if (space.has_grid()) {
    return {RandomSampler(space, seed, false), "random", say("random", "there is a grid")};
  }
  if (has_conditions) {
    return {MakeTpe(space, given, seed), "tpe", say("tpe", "some parameters depend on others")};
  }
  if (!has_categories && budget > kTrialsOfCma * d) {
    return {std::make_unique<CmaSampler>(space, CmaOptions{.seed = seed}), "cmaes",
            say("cmaes", fmt::format("{} trials are many for {} numbers", budget, d))};
  }
  if (space.size() > kMostDimensionsOfGp) {
    return {MakeTpe(space, given, seed), "tpe",
            say("tpe", fmt::format("{} parameters are many", d))};
  }
  return {
      std::make_unique<GpThenTpe>(MakeGp(space, given, seed), MakeTpe(space, given, seed)), "gp",
      say("gp",
          fmt::format("{} parameters are few; from trial {} on tpe", d, GpThenTpe::kTrialsOfGp))};
}

}  // namespace

Search MakeSearch(const std::string& name, const Space& space, const SearchOptions& options) {
  const Entry& entry = Find(name);
  const Given given(entry, options);
  const std::uint64_t seed = given.Seed(options.seed);
  const std::string algorithm = entry.algorithm;
  const bool takes_grid = algorithm == "random" || algorithm == "grid" || algorithm == "auto";
  if (space.has_grid() && !takes_grid) {
    throw Error(
        Code::kInvalidArgument,
        fmt::format("Grid search parameters cannot be automatically converted for search_alg "
                    "'{}'; use choice, or search_alg 'random'",
                    entry.name));
  }
  Search search = {.algorithm = algorithm};
  if (*entry.original != '\0') {
    search.note = fmt::format("search_alg '{}' runs as {} in place of {}", entry.name, algorithm,
                              entry.original);
  }
  if (algorithm == "auto") return MakeAuto(space, given, seed, options.budget);
  if (algorithm == "random") {
    search.sampler = RandomSampler(space, seed, given.Number("constant_grid_search", 0) != 0);
  } else if (algorithm == "grid") {
    search.sampler = GridSampler(space);
  } else if (algorithm == "sobol") {
    search.sampler = SobolSampler(space, seed);
  } else if (algorithm == "gp") {
    search.sampler = MakeGp(space, given, seed);
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

std::vector<std::string> IgnoredSearchParameters(const std::string& name) {
  return Find(name).ignored;
}

}  // namespace orca::tune
