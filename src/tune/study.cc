#include "orca/tune/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/log.h"
#include "tune/philox.h"
#include "tune/study_state.h"

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

double SystemClock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The last line, where errors say what they are, without numbers of processes and places in memory.
std::string Essence(const std::string& error) {
  const std::size_t end = error.find_last_not_of(" \n") + 1;
  const std::size_t line = end == 0 ? std::string::npos : error.rfind('\n', end - 1);
  std::string found;
  for (std::size_t i = line == std::string::npos ? 0 : line + 1; i < end; ++i) {
    const bool is_digit = error[i] >= '0' && error[i] <= '9';
    if (!is_digit) found += error[i];
    if (is_digit && (found.empty() || found.back() != '#')) found += '#';
  }
  return found;
}

SchedulerOptions Scheduling(const StudyOptions& options) {
  SchedulerOptions found = options.scheduling;
  found.maximize = options.mode == Mode::kMax;
  found.seed = options.search.seed;
  return found;
}

}  // namespace

void StudyMutex::lock() {
  if (owner_.load() == std::this_thread::get_id()) {
    throw Error(Code::kFailedPrecondition,
                "a function that the study calls cannot call the study; use what it is given");
  }
  mutex_.lock();
  owner_.store(std::this_thread::get_id());
}

void StudyMutex::unlock() {
  owner_.store({});
  mutex_.unlock();
}

Study::State::State(Space given_space, StudyOptions given)
    : space(std::move(given_space)),
      options(std::move(given)),
      search(MakeSearch(options.search_alg, space, options.search)),
      scheduler(
          MakeScheduler(options.scheduler, options.scheduler_parameters, Scheduling(options))),
      cardinality(space.Cardinality()),
      is_distinct(!options.allow_duplicates && !space.has_grid() && std::isfinite(cardinality)) {}

Study::State::Mishap::Mishap(std::int64_t at, const std::string& error)
    : step(at), essence(Essence(error)) {}

double Study::State::Now() const { return options.clock ? options.clock() : SystemClock(); }

Trial& Study::State::At(std::int64_t number) {
  if (number < 0 || number >= static_cast<std::int64_t>(trials.size())) {
    throw Error(Code::kInvalidArgument,
                fmt::format("there is no trial {}; {} have been asked for", number, trials.size()));
  }
  return trials[static_cast<std::size_t>(number)];
}

Trial& Study::State::Running(std::int64_t number) {
  Trial& trial = At(number);
  if (trial.state != TrialState::kRunning) {
    throw Error(
        Code::kFailedPrecondition,
        fmt::format("trial {} is {}, not running; a trial is told once, and after \"stop\" or "
                    "\"pause\" there is nothing to tell",
                    number, TrialStateName(trial.state)));
  }
  return trial;
}

Observation Study::State::Observe(const Trial& trial) const {
  Observation seen_so = {.number = trial.number, .point = trial.point, .state = trial.state};
  if (trial.state == TrialState::kPaused) seen_so.state = TrialState::kPruned;
  if (trial.state == TrialState::kFinished) seen_so.loss = Loss(trial.value);
  if (seen_so.state == TrialState::kPruned && !trial.reports.empty()) {
    seen_so.loss = Loss(trial.reports.back().value);
    seen_so.step = trial.reports.back().step;
  }
  return seen_so;
}

// --- what is proposed

bool Study::State::MayAsk() const {
  if (options.batch == 0 || trials.size() % static_cast<std::size_t>(options.batch) != 0) {
    return true;
  }
  return running == 0;
}

std::optional<Point> Study::State::Propose(std::int64_t number) {
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

void Study::State::TellEnds() {
  const auto batch = options.batch;
  const auto known = static_cast<std::int64_t>(trials.size());
  for (; told < known - (batch == 0 ? 0 : known % batch); ++told) {
    search.sampler->Tell(Observe(trials[static_cast<std::size_t>(told)]));
  }
}

// --- what becomes of a trial

void Study::State::Begin(Trial trial) {
  if (is_distinct) seen.insert(Key(space, trial.point));
  trials.push_back(std::move(trial));
  ++running;
  // Running: the model keeps away from it.
  Observation begun = Observe(trials.back());
  begun.state = TrialState::kRunning;
  search.sampler->Tell(begun);
}

void Study::State::Insert(const Trial& trial) {
  space.Check(trial.point);
  if (trial.state == TrialState::kFinished && !std::isfinite(trial.value)) {
    throw Error(Code::kInvalidArgument,
                fmt::format("a finished trial has the value {}, which is not a finite number",
                            trial.value));
  }
  if (options.batch > 0 && MayAsk()) TellEnds();
  Begin(trial);
  Trial& kept = trials.back();
  if (kept.state == TrialState::kPaused) {
    Pause(kept);
  } else if (kept.state != TrialState::kRunning) {
    End(kept, kept.state);
  }
}

void Study::State::Pause(Trial& trial) {
  trial.state = TrialState::kPaused;
  --running;
  if (options.batch == 0 || trial.number < told) search.sampler->Tell(Observe(trial));
}

void Study::State::Resume(const Task& resumed) {
  Trial& trial = trials[static_cast<std::size_t>(resumed.trial)];
  trial.source = resumed.source;
  trial.resumed_step = resumed.source >= 0     ? resumed.source_step
                       : trial.reports.empty() ? 0
                                               : trial.reports.back().step;
  if (!resumed.config.empty()) trial.config = resumed.config;
  Commit({.kind = EventKind::kResume,
          .trial = trial.number,
          .step = trial.resumed_step,
          .config = resumed.config,
          .source = resumed.source,
          .source_step = resumed.source_step},
         resumed.policy.empty() ? std::vector<Attribute>() : std::vector{PolicyOf(resumed)});
  if (resumed.source >= 0) {
    ++trial.clones;
    std::erase_if(trial.reports,
                  [&](const tune::Report& r) { return r.step > resumed.source_step; });
  }
  trial.state = TrialState::kRunning;
  ++running;
  ready.push_back(trial.number);
}

void Study::State::Stop(Trial& trial) {
  const double value =
      trial.reports.empty() ? std::numeric_limits<double>::quiet_NaN() : trial.reports.back().value;
  Commit({.kind = EventKind::kStop, .trial = trial.number, .value = value});
  End(trial, TrialState::kPruned);
}

void Study::State::End(Trial& trial, TrialState state) {
  if (trial.state == TrialState::kRunning || trial.state == state) --running;
  trial.state = state;
  if (trial.ended == 0) trial.ended = Now();
  Rank(trial);
  if (options.batch == 0 || trial.number < told) search.sampler->Tell(Observe(trial));
}

void Study::State::Rank(const Trial& trial) {
  if (trial.state != TrialState::kFinished) return;
  if (best >= 0) {
    const Trial& leader = trials[static_cast<std::size_t>(best)];
    const std::pair mine(Loss(trial.value), trial.number);
    if (mine > std::pair(Loss(leader.value), leader.number)) return;
  }
  best = trial.number;
}

Decision Study::State::Decide(std::int64_t trial, std::int64_t step, double value) {
  if (!IsThrough(step)) return scheduler->Report(trial, step, value);
  scheduler->Note(trial, step, value, Decision::kContinue);
  return Decision::kContinue;
}

void Study::State::Act(Trial& trial, std::int64_t step, Decision decision) {
  if (decision == Decision::kContinue) return;
  if (decision == Decision::kStop) {
    Stop(trial);
    return;
  }
  has_paused = true;
  const bool pauses = decision == Decision::kPause;
  Commit(
      {.kind = pauses ? EventKind::kPause : EventKind::kSave, .trial = trial.number, .step = step});
  if (pauses) Pause(trial);
}

// --- what a caller does

bool Study::State::CanAsk() {
  if (!ready.empty() || next_start) return true;
  Task next = Next(true);
  if (next.kind == Task::Kind::kResume) {
    Resume(next);
  } else if (next.kind == Task::Kind::kStart) {
    next_start = std::move(next);
  } else {
    return IsOver();
  }
  return true;
}

std::optional<Trial> Study::State::Ask() {
  if (auto waiting = TakeReady()) return waiting;
  Task next = next_start ? *std::exchange(next_start, std::nullopt) : Next(true);
  if (next.kind == Task::Kind::kStart) {
    if (options.batch > 0) TellEnds();
    const auto number = static_cast<std::int64_t>(trials.size());
    if (std::optional<Point> point = Propose(number)) {
      Trial begun = {
          .number = number, .point = std::move(*point), .config = next.config, .started = Now()};
      const std::string config = ConfigOf(begun);
      scheduler->Start(number, config);
      Begin(std::move(begun));
      const Trial& kept = trials.back();
      CommitStart(kept, config);
      return kept;
    }
    is_exhausted = true;
    next = Next(true);
  }
  if (next.kind == Task::Kind::kResume) {
    Resume(next);
    return TakeReady();
  }
  if (IsOver()) return std::nullopt;
  throw Error(
      Code::kFailedPrecondition,
      MayAsk()
          ? fmt::format("the scheduler waits for {} trials that run; tell them first", running)
          : fmt::format("{} trials of the batch still run; tell them before the next batch of {}",
                        running, options.batch));
}

std::optional<Trial> Study::State::AskAgain() {
  if (ready.empty()) {
    next_start.reset();  // Nothing starts: others may go on.
    const Task next = Next(false);
    if (next.kind == Task::Kind::kResume) Resume(next);
  }
  return TakeReady();
}

void Study::State::Tell(std::int64_t number, double value) {
  if (!std::isfinite(value)) {
    Fail(number, fmt::format("its value is {}, which is not a finite number", value));
    return;
  }
  Trial& trial = Running(number);
  trial.value = value;
  scheduler->Finished(number);
  Commit({.kind = EventKind::kFinish, .trial = number, .value = value});
  End(trial, TrialState::kFinished);
}

void Study::State::Fail(std::int64_t number, const std::string& error) {
  Trial& trial = Running(number);
  trial.error = error;
  scheduler->Failed(number);
  Commit({.kind = EventKind::kFail, .trial = number, .error = error});
  End(trial, TrialState::kFailed);
}

Task Study::State::Next(bool may_start) {
  while (true) {
    Task next = scheduler->Next(may_start && !is_exhausted && MayAsk());
    if (next.kind != Task::Kind::kStop) return next;
    stopped.push_back(next.trial);
    Stop(trials[static_cast<std::size_t>(next.trial)]);
  }
}

std::optional<Trial> Study::State::TakeReady() {
  if (ready.empty()) return std::nullopt;
  const auto number = static_cast<std::size_t>(ready.front());
  ready.pop_front();
  return trials[number];
}

// --- Study

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
  for (const std::string& text : scheduler_notes()) Log(LogLevel::kInfo, text);
  state_->Open();
}

Study::~Study() = default;

const Space& Study::space() const { return state_->space; }
const StudyOptions& Study::options() const { return state_->options; }
const std::string& Study::algorithm() const { return state_->search.algorithm; }
const std::string& Study::note() const { return state_->search.note; }

bool Study::may_pause() const { return state_->scheduler->may_pause(); }
bool Study::changes_configs() const { return state_->scheduler->changes_configs(); }
bool Study::learns() const {
  return state_->options.batch > 0 || state_->search.sampler->learns() ||
         state_->scheduler->decides();
}

const std::vector<std::string>& Study::scheduler_notes() const {
  return state_->scheduler->notes();
}

// What one caller does at a time, while the study can be stored.
class Study::Turn {
 public:
  explicit Turn(const State& state) : lock_(state.mutex) {
    if (state.failure.empty()) return;
    throw Error(Code::kFailedPrecondition,
                fmt::format("{} could not be written ({}); mend that, and open the study again",
                            state.options.storage.file.string(), state.failure));
  }

 private:
  std::lock_guard<StudyMutex> lock_;
};

bool Study::CanAsk() {
  const Turn turn(*state_);
  return state_->CanAsk();
}

std::optional<Trial> Study::Ask() {
  const Turn turn(*state_);
  return state_->Ask();
}

std::optional<Trial> Study::AskAgain() {
  const Turn turn(*state_);
  return state_->AskAgain();
}

void Study::Tell(std::int64_t number, double value) {
  const Turn turn(*state_);
  state_->Tell(number, value);
}

std::vector<Trial> Study::TellAndAsk(const std::vector<Told>& told, std::int64_t wanted) {
  const Turn turn(*state_);
  State& state = *state_;
  std::vector<Trial> next;
  const auto add = [&next](std::optional<Trial> trial) {
    if (trial) next.push_back(std::move(*trial));
    return trial.has_value();
  };
  state.holds = true;
  try {
    for (const Told& ended : told) state.Tell(ended.number, ended.value);
    if (wanted == 0) add(state.AskAgain());
    while (std::ssize(next) < wanted && state.CanAsk() && add(state.Ask())) {
    }
  } catch (...) {
    state.CommitHeld();  // Trials have ended, whatever became of the next ones.
    throw;
  }
  state.CommitHeld();
  return next;
}

void Study::Fail(std::int64_t number, const std::string& error) {
  const Turn turn(*state_);
  state_->Fail(number, error);
}

bool Study::Retry(std::int64_t number, const std::string& error, std::int64_t step) {
  {
    const Turn turn(*state_);
    State& state = *state_;
    Trial& trial = state.Running(number);
    const auto last = state.mishaps.find(number);
    const State::Mishap mishap(step, error);
    const bool is_same = last != state.mishaps.end() && last->second == mishap;
    if (trial.retries < state.options.retries && !is_same) {
      state.Commit({.kind = EventKind::kRetry, .trial = number, .step = step, .error = error});
      ++trial.retries;
      state.mishaps[number] = mishap;
      return true;
    }
    if (is_same) {
      Log(LogLevel::kInfo, fmt::format("trial {} met the same error twice behind step {}: it is "
                                       "not run again",
                                       number, step));
    }
  }
  Fail(number, error);
  return false;
}

void Study::Prune(std::int64_t number) {
  const Turn turn(*state_);
  Trial& trial = state_->Running(number);
  state_->scheduler->Finished(number);
  state_->Stop(trial);
}

Decision Study::AddReport(std::int64_t number, std::int64_t step, double value) {
  const Turn turn(*state_);
  State& state = *state_;
  Trial& trial = state.Running(number);
  const std::int64_t last = trial.reports.empty() ? 0 : trial.reports.back().step;
  const auto known = std::lower_bound(trial.reports.begin(), trial.reports.end(), step,
                                      [](const tune::Report& r, auto at) { return r.step < at; });
  const bool is_known = known != trial.reports.end() && known->step == step;
  if (!is_known && step <= last) {
    throw Error(Code::kInvalidArgument,
                fmt::format("step {} of trial {} does not come after step {}; steps ascend from 1",
                            step, number, last));
  }
  const Decision decision = state.Decide(number, step, value);
  if (!is_known) {
    trial.reports.push_back({step, value});
    state.WriteReport(number, step, value);
  }
  state.Act(trial, step, decision);
  return decision;
}

std::vector<std::int64_t> Study::TakeStopped() {
  const Turn turn(*state_);
  return std::exchange(state_->stopped, {});
}

void Study::SetMemo(std::int64_t number, const std::string& memo) {
  const Turn turn(*state_);
  state_->At(number).memo = memo;
  state_->WriteMemo(number, memo);
}

void Study::SetMemo(const std::string& memo) {
  const Turn turn(*state_);
  state_->memo = memo;
  state_->WriteMemo(-1, memo);
}

std::int64_t Study::Add(const Trial& trial) {
  const Turn turn(*state_);
  State& state = *state_;
  Trial added = trial;
  added.number = static_cast<std::int64_t>(state.trials.size());
  if (added.state != TrialState::kFinished) {
    throw Error(Code::kInvalidArgument, "only finished trials of another study can be added");
  }
  if (added.started == 0) added.started = added.ended = state.Now();
  state.Insert(added);
  std::vector<Event> events;
  std::vector<Attribute> attributes;
  state.NoteAdded(state.trials.back(), events, attributes);
  if (state.store) state.Write(events, attributes);
  return added.number;
}

void Study::Restore(const Trial& trial) {
  const Turn turn(*state_);
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

std::int64_t Study::added() const {
  const std::lock_guard lock(state_->mutex);
  return state_->added;
}

std::string Study::memo() const {
  const std::lock_guard lock(state_->mutex);
  return state_->memo;
}

std::vector<std::string> Study::Policies() const {
  const std::lock_guard lock(state_->mutex);
  return state_->policies;
}

StudyProgress Study::Progress(std::size_t running) const {
  const std::lock_guard lock(state_->mutex);
  StudyProgress found;
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&](const Trial& trial, double value) {
    if (!(state_->Loss(value) < least)) return;
    least = state_->Loss(value);
    found.best = trial.number;
    found.best_value = value;
  };
  for (const Trial& trial : state_->trials) {
    if (state_->foreign.contains(trial.number)) continue;
    ++found.counts.at(static_cast<std::size_t>(trial.state));
    if (trial.state == TrialState::kFailed) continue;
    if (trial.state == TrialState::kFinished) consider(trial, trial.value);
    for (const tune::Report& report : trial.reports) consider(trial, report.value);
    const bool runs = trial.state == TrialState::kRunning;
    if (!runs && trial.state != TrialState::kPaused) continue;
    if (!trial.reports.empty()) found.steps += trial.reports.back().step;
    if (runs && found.running.size() < running) found.running.push_back(trial);
  }
  return found;
}

Trial Study::At(std::int64_t number) const {
  const std::lock_guard lock(state_->mutex);
  return state_->At(number);
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

std::string Study::ConfigText(const Trial& trial) const { return state_->ConfigOf(trial); }

}  // namespace orca::tune
