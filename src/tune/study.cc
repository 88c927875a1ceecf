#include "orca/tune/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/log.h"
#include "tune/philox.h"

namespace orca::tune {
namespace {

constexpr std::uint32_t kRedraws = 64;
// In a larger space that many redraws always find a point that is new.
constexpr double kWalked = 0x1p20;

// The same bytes for the same point: stepped values as multiples of their step, and one zero.
std::string Key(const Space& space, Point point) {
  for (std::size_t i = 0; i < point.size(); ++i) {
    if (std::isnan(point[i])) {
      point[i] = -std::numeric_limits<double>::infinity();
    } else if (space[i].is_stepped()) {
      point[i] = std::nearbyint(point[i] / space[i].spacing());
    }
    point[i] += 0.0;
  }
  std::string key(point.size() * sizeof(double), '\0');
  std::memcpy(key.data(), point.data(), key.size());
  return key;
}

}  // namespace

struct Study::State {
  State(Space given_space, StudyOptions given)
      : space(std::move(given_space)),
        options(std::move(given)),
        search(MakeSearch(options.search_alg, space, options.search)),
        cardinality(space.Cardinality()),
        is_distinct(!options.allow_duplicates && !space.has_grid() && std::isfinite(cardinality)) {}

  const Space space;
  const StudyOptions options;
  Search search;
  const double cardinality;
  const bool is_distinct;  // Whether no point may come twice.

  mutable std::mutex mutex;
  // All below are guarded by `mutex`.
  std::vector<Trial> trials;
  std::int64_t running = 0;
  std::int64_t added = 0;  // From other studies; they take none of the points to evaluate.
  std::int64_t told = 0;   // With batches: the sampler knows the end of the trials before this one.
  std::int64_t best = -1;
  bool is_exhausted = false;
  std::unordered_set<std::string> seen;

  double Loss(double value) const { return options.mode == Mode::kMax ? -value : value; }

  Trial& Running(std::int64_t number) {
    if (number < 0 || number >= static_cast<std::int64_t>(trials.size())) {
      throw Error(
          Code::kInvalidArgument,
          fmt::format("there is no trial {}; {} have been asked for", number, trials.size()));
    }
    Trial& trial = trials[static_cast<std::size_t>(number)];
    if (trial.state != TrialState::kRunning) {
      throw Error(Code::kFailedPrecondition,
                  fmt::format("trial {} has ended already; a trial is told once", number));
    }
    return trial;
  }

  Observation Observe(const Trial& trial) const {
    Observation seen_so = {.number = trial.number, .point = trial.point, .state = trial.state};
    if (trial.state == TrialState::kFinished) seen_so.loss = Loss(trial.value);
    if (trial.state == TrialState::kPruned && !trial.reports.empty()) {
      seen_so.loss = Loss(trial.reports.back().value);
      seen_so.step = trial.reports.back().step;
    }
    return seen_so;
  }

  bool MayAsk() const {
    if (options.batch == 0 || trials.size() % static_cast<std::size_t>(options.batch) != 0) {
      return true;
    }
    return running == 0;
  }

  // The sampler learns of ends at once, or batch by batch in the order of numbers.
  void TellEnds() {
    const auto batch = options.batch;
    const auto known = static_cast<std::int64_t>(trials.size());
    for (; told < known - (batch == 0 ? 0 : known % batch); ++told) {
      search.sampler->Tell(Observe(trials[static_cast<std::size_t>(told)]));
    }
  }

  void End(Trial& trial, TrialState state) {
    trial.state = state;
    --running;
    Rank(trial);
    if (options.batch == 0) search.sampler->Tell(Observe(trial));
  }

  void Rank(const Trial& trial) {
    if (trial.state != TrialState::kFinished) return;
    if (best >= 0) {
      const Trial& leader = trials[static_cast<std::size_t>(best)];
      const std::pair mine(Loss(trial.value), trial.number);
      if (mine > std::pair(Loss(leader.value), leader.number)) return;
    }
    best = trial.number;
  }

  std::optional<Point> Propose(std::int64_t number) {
    if (number - added < static_cast<std::int64_t>(options.points.size())) {
      Point point = options.points[static_cast<std::size_t>(number - added)];
      space.Complete(point, options.search.seed, number);
      return point;
    }
    Point point = search.sampler->Ask(number);
    if (!is_distinct || !seen.contains(Key(space, point))) return point;
    for (std::uint32_t attempt = 1; attempt <= kRedraws; ++attempt) {
      point = space.Redraw(options.search.seed, number, attempt);
      if (!seen.contains(Key(space, point))) return point;
    }
    if (cardinality > kWalked) return point;
    const auto count = static_cast<std::int64_t>(cardinality);
    Stream random(options.search.seed, number, HashName("study:walk"));
    const auto start = static_cast<std::int64_t>(random.Uniform() * cardinality);
    for (std::int64_t i = 0; i < count; ++i) {
      point = space.Enumerate((start + i) % count);
      if (!seen.contains(Key(space, point))) return point;
    }
    return std::nullopt;
  }

  // A trial that began, and may have ended, elsewhere.
  void Insert(const Trial& trial) {
    space.Check(trial.point);
    if (trial.state == TrialState::kFinished && !std::isfinite(trial.value)) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("a finished trial has the value {}, which is not a finite number",
                              trial.value));
    }
    if (options.batch > 0 && MayAsk()) TellEnds();
    Start(trial);
    Trial& kept = trials.back();
    if (kept.state != TrialState::kRunning) End(kept, kept.state);
  }

  void Start(Trial trial) {
    if (is_distinct) seen.insert(Key(space, trial.point));
    trials.push_back(std::move(trial));
    ++running;
    // Running: the model keeps away from it.
    Observation begun = Observe(trials.back());
    begun.state = TrialState::kRunning;
    search.sampler->Tell(begun);
  }
};

Study::Study(Space space, StudyOptions options) {
  if (options.batch < 0) {
    throw Error(Code::kInvalidArgument,
                fmt::format("batch {} is negative; give 0 for none", options.batch));
  }
  for (Point point : options.points) {
    if (point.size() != space.size()) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("a point to evaluate has {} numbers for {} parameters", point.size(),
                              space.size()));
    }
    space.Complete(point, 0, 0);
    space.Check(point);
  }
  state_ = std::make_unique<State>(std::move(space), std::move(options));
  if (!note().empty()) Log(LogLevel::kInfo, note());
}

Study::~Study() = default;

const Space& Study::space() const { return state_->space; }
const std::string& Study::algorithm() const { return state_->search.algorithm; }
const std::string& Study::note() const { return state_->search.note; }

bool Study::CanAsk() const {
  const std::lock_guard lock(state_->mutex);
  return state_->MayAsk();
}

std::optional<Trial> Study::Ask() {
  const std::lock_guard lock(state_->mutex);
  if (state_->is_exhausted) return std::nullopt;
  if (!state_->MayAsk()) {
    throw Error(
        Code::kFailedPrecondition,
        fmt::format("{} trials of the batch still run; tell them before the next batch of {}",
                    state_->running, state_->options.batch));
  }
  if (state_->options.batch > 0) state_->TellEnds();
  const auto number = static_cast<std::int64_t>(state_->trials.size());
  std::optional<Point> point = state_->Propose(number);
  if (!point) {
    state_->is_exhausted = true;
    return std::nullopt;
  }
  state_->Start({.number = number, .point = std::move(*point)});
  return state_->trials.back();
}

void Study::Tell(std::int64_t number, double value) {
  const std::lock_guard lock(state_->mutex);
  Trial& trial = state_->Running(number);
  if (std::isfinite(value)) {
    trial.value = value;
    state_->End(trial, TrialState::kFinished);
  } else {
    trial.error = fmt::format("its value is {}, which is not a finite number", value);
    state_->End(trial, TrialState::kFailed);
  }
}

void Study::Fail(std::int64_t number, const std::string& error) {
  const std::lock_guard lock(state_->mutex);
  Trial& trial = state_->Running(number);
  trial.error = error;
  state_->End(trial, TrialState::kFailed);
}

void Study::Prune(std::int64_t number) {
  const std::lock_guard lock(state_->mutex);
  state_->End(state_->Running(number), TrialState::kPruned);
}

void Study::AddReport(std::int64_t number, std::int64_t step, double value) {
  const std::lock_guard lock(state_->mutex);
  Trial& trial = state_->Running(number);
  const std::int64_t last = trial.reports.empty() ? 0 : trial.reports.back().step;
  if (step <= last) {
    throw Error(Code::kInvalidArgument,
                fmt::format("step {} of trial {} does not come after step {}; steps ascend from 1",
                            step, number, last));
  }
  trial.reports.push_back({step, value});
}

std::int64_t Study::Add(const Trial& trial) {
  const std::lock_guard lock(state_->mutex);
  Trial added = trial;
  added.number = static_cast<std::int64_t>(state_->trials.size());
  state_->Insert(added);
  ++state_->added;
  return added.number;
}

void Study::Restore(const Trial& trial) {
  const std::lock_guard lock(state_->mutex);
  if (trial.number != static_cast<std::int64_t>(state_->trials.size())) {
    throw Error(Code::kInvalidArgument, fmt::format("trial {} was put back where {} is next",
                                                    trial.number, state_->trials.size()));
  }
  state_->Insert(trial);
}

std::int64_t Study::size() const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<std::int64_t>(state_->trials.size());
}

Trial Study::At(std::int64_t number) const {
  const std::lock_guard lock(state_->mutex);
  if (number < 0 || number >= static_cast<std::int64_t>(state_->trials.size())) {
    throw Error(Code::kInvalidArgument,
                fmt::format("there is no trial {}; there are {}", number, state_->trials.size()));
  }
  return state_->trials[static_cast<std::size_t>(number)];
}

std::vector<Trial> Study::Trials() const {
  const std::lock_guard lock(state_->mutex);
  return state_->trials;
}

std::optional<Trial> Study::Best() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->best < 0) return std::nullopt;
  return state_->trials[static_cast<std::size_t>(state_->best)];
}

std::map<std::string, Value> Study::Config(const Trial& trial) const {
  std::map<std::string, Value> config;
  for (std::size_t i = 0; i < state_->space.size(); ++i) {
    if (std::isnan(trial.point[i])) continue;
    config.emplace(state_->space[i].name, state_->space[i].Decode(trial.point[i]));
  }
  return config;
}

}  // namespace orca::tune
