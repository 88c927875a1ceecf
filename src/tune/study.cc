#include "orca/tune/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/log.h"
#include "orca/tune/store.h"
#include "orca/tune/study_view.h"
#include "tune/philox.h"
#include "tune/schedulers/json.h"

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

constexpr const char* kPoint = "point";           // A trial's attribute.
constexpr const char* kAdded = "added";           // A trial's: it is of another study.
constexpr const char* kScheduler = "scheduler";   // The study's.
constexpr const char* kWarmStart = "warm_start";  // The study's: where added trials are from.

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

Json ToJson(const Value& value) {
  return std::visit([](const auto& held) { return Json(held); }, value);
}

Json Describe(const Parameter& one) {
  Json values = Json::array();
  for (const Value& value : one.values) values.push_back(ToJson(value));
  return {{"name", one.name},
          {"law", static_cast<int>(one.law)},
          {"low", ToJson(one.low)},
          {"high", ToJson(one.high)},
          {"step", one.step},
          {"choices", one.choices},
          {"values", values},
          {"parent", one.parent},
          {"parent_choice", one.parent_choice}};
}

// What a study that is stored must have been begun with.
std::string Metadata(const Space& space, const StudyOptions& options) {
  Json parameters = Json::array();
  for (const Parameter& one : space.parameters()) parameters.push_back(Describe(one));
  return Json({{"space", parameters},
               {"mode", options.mode == Mode::kMax ? "max" : "min"},
               {"seed", options.search.seed},
               {"search_alg", options.search_alg},
               {"search_parameters", options.search.parameters},
               {"batch", options.batch},
               {"scheduler", options.scheduler},
               {"scheduler_parameters", Json::parse(options.scheduler_parameters)}})
      .dump();
}

void CheckSame(const StudyInfo& stored, const std::string& metadata,
               const std::filesystem::path& file) {
  Json before = Json::parse(stored.metadata, nullptr, false);
  const Json now = Json::parse(metadata);
  // Files of before had no values of categories whose caller kept them.
  if (before.is_object() && before["space"].is_array() &&
      before["space"].size() == now["space"].size()) {
    for (std::size_t i = 0; i < now["space"].size(); ++i) {
      Json& parameter = before["space"][i];
      if (parameter.is_object() && parameter["values"].empty())
        parameter["values"] = now["space"][i]["values"];
    }
  }
  for (const auto& [key, value] : now.items()) {
    if (before.is_object() && before.contains(key) && before[key] == value) continue;
    throw Error(
        Code::kFailedPrecondition,
        fmt::format("study '{}' in {} was begun with another {}; give the same, another name, "
                    "or resume nothing",
                    stored.name, file.string(), key));
  }
}

SchedulerOptions Scheduling(const StudyOptions& options) {
  SchedulerOptions found = options.scheduling;
  found.maximize = options.mode == Mode::kMax;
  found.seed = options.search.seed;
  return found;
}

}  // namespace

struct Study::State {
  State(Space given_space, StudyOptions given)
      : space(std::move(given_space)),
        options(std::move(given)),
        search(MakeSearch(options.search_alg, space, options.search)),
        scheduler(
            MakeScheduler(options.scheduler, options.scheduler_parameters, Scheduling(options))),
        cardinality(space.Cardinality()),
        is_distinct(!options.allow_duplicates && !space.has_grid() && std::isfinite(cardinality)) {}

  const Space space;
  const StudyOptions options;
  Search search;
  const std::unique_ptr<Scheduler> scheduler;
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
  std::unordered_set<std::int64_t>
      foreign;  // Of another study: the scheduler knows nothing of them.
  std::optional<StudyStore> store;
  // Those that run, but for somebody who asks: they ran when the study was stored last, or go on.
  std::deque<std::int64_t> ready;
  std::optional<Task> next_start;  // What the scheduler said to CanAsk(), for Ask().
  bool has_paused = false;  // From then on the scheduler's state is stored with every decision.

  // Of a trial that crashed or hung, the last time.
  struct Mishap {
    std::int64_t step = 0;
    std::string essence;
  };
  std::unordered_map<std::int64_t, Mishap> mishaps;

  double Now() const { return options.clock ? options.clock() : SystemClock(); }
  double Loss(double value) const { return options.mode == Mode::kMax ? -value : value; }

  Trial& Running(std::int64_t number) {
    if (number < 0 || number >= static_cast<std::int64_t>(trials.size())) {
      throw Error(
          Code::kInvalidArgument,
          fmt::format("there is no trial {}; {} have been asked for", number, trials.size()));
    }
    Trial& trial = trials[static_cast<std::size_t>(number)];
    if (trial.state != TrialState::kRunning) {
      throw Error(
          Code::kFailedPrecondition,
          fmt::format("trial {} is {}, not running; a trial is told once, and after \"stop\" or "
                      "\"pause\" there is nothing to tell",
                      number, TrialStateName(trial.state)));
    }
    return trial;
  }

  Observation Observe(const Trial& trial) const {
    Observation seen_so = {.number = trial.number, .point = trial.point, .state = trial.state};
    if (trial.state == TrialState::kPaused) seen_so.state = TrialState::kRunning;
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

  // Whether nothing can come any more.
  bool IsOver() const { return is_exhausted || (running == 0 && MayAsk()); }

  // The sampler learns of ends at once, or batch by batch in the order of numbers.
  void TellEnds() {
    const auto batch = options.batch;
    const auto known = static_cast<std::int64_t>(trials.size());
    for (; told < known - (batch == 0 ? 0 : known % batch); ++told) {
      search.sampler->Tell(Observe(trials[static_cast<std::size_t>(told)]));
    }
  }

  void End(Trial& trial, TrialState state) {
    if (trial.state == TrialState::kRunning || trial.state == state) --running;
    trial.state = state;
    if (trial.ended == 0) trial.ended = Now();
    Rank(trial);
    if (options.batch == 0 || trial.number < told) search.sampler->Tell(Observe(trial));
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

  // --- decisions

  void Commit(const Event& event, std::vector<Attribute> attributes = {}) {
    if (!store) return;
    if (has_paused) attributes.push_back({-1, kScheduler, scheduler->State()});
    store->Commit(std::span(&event, 1), attributes);
  }

  static Attribute PointOf(const Trial& trial) {
    Json point = Json::array();
    for (const double number : trial.point) point.push_back(tune::ToJson(number));
    return {trial.number, kPoint, point.dump()};
  }

  std::string ConfigOf(const Trial& trial) const {
    if (!trial.config.empty()) return trial.config;
    Json config = Json::object();
    for (std::size_t i = 0; i < space.size(); ++i) {
      if (!std::isnan(trial.point[i]))
        config[space[i].name] = ToJson(space[i].Decode(trial.point[i]));
    }
    return config.dump();
  }

  // What a free worker does; trials that will not go on are ended on the way.
  Task Next(bool may_start) {
    while (true) {
      Task next = scheduler->Next(may_start && !is_exhausted && MayAsk());
      if (next.kind != Task::Kind::kStop) return next;
      Stop(trials[static_cast<std::size_t>(next.trial)]);
    }
  }

  void Stop(Trial& trial) {
    const double value = trial.reports.empty() ? std::numeric_limits<double>::quiet_NaN()
                                               : trial.reports.back().value;
    Commit({.kind = EventKind::kStop, .trial = trial.number, .value = value});
    End(trial, TrialState::kPruned);
  }

  void Resume(const Task& resumed) {
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
            .source_step = resumed.source_step});
    if (resumed.source >= 0) {
      ++trial.clones;
      std::erase_if(trial.reports,
                    [&](const tune::Report& r) { return r.step > resumed.source_step; });
    }
    trial.state = TrialState::kRunning;
    ++running;
    ready.push_back(trial.number);
  }

  std::optional<Trial> TakeReady() {
    if (ready.empty()) return std::nullopt;
    const auto number = static_cast<std::size_t>(ready.front());
    ready.pop_front();
    return trials[number];
  }

  // --- what was stored

  void Open() {
    const StudyStorage& storage = options.storage;
    if (storage.file.empty()) {
      WarmStart();
      return;
    }
    store = StudyStore::Open(storage.file, {.full_sync = storage.full_sync});
    const std::string metadata = Metadata(space, options);
    const auto stored = storage.resume ? store->Resume(storage.name) : std::nullopt;
    if (stored) {
      CheckSame(*stored, metadata, storage.file);
      Load(stored->id);
    } else {
      store->Create({.name = storage.name,
                     .metric = storage.metric,
                     .mode = options.mode == Mode::kMax ? "max" : "min",
                     .metadata = metadata});
    }
    WarmStart();
  }

  // The finished trials of an older study, in one commit: all of them, or none.
  void WarmStart() {
    if (options.warm_start.empty() || !trials.empty()) return;
    const std::filesystem::path file = FindStudyFile(options.warm_start);
    // A file's writer reads through its own connection; the study that begins is the youngest.
    std::optional<StudyStore> other;
    const bool is_same = store && std::filesystem::equivalent(file, options.storage.file);
    if (!is_same) other = StudyStore::OpenToRead(file);
    const StudyStore& from = is_same ? *store : *other;
    std::vector<StudyInfo> studies = from.Studies();
    if (is_same) studies.pop_back();
    if (studies.empty()) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("warm_start {} has no study; give the file or the folder of one",
                              file.string()));
    }
    const StudyInfo& old = studies.back();
    const std::string mode = options.mode == Mode::kMax ? "max" : "min";
    if (old.mode != mode || old.metric != options.storage.metric) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("warm_start {} is a search for the {} of {}, this one for the {} of "
                              "{}: their values cannot be compared",
                              file.string(), old.mode, old.metric, mode, options.storage.metric));
    }
    const std::vector<Trial> found = Translated(from, old);
    std::vector<Event> events;
    std::vector<Attribute> attributes = {
        {-1, kWarmStart, Json({{"file", file.string()}, {"study", old.id}}).dump()}};
    for (const Trial& trial : found) {
      Insert(trial);
      NoteAdded(trials.back(), events, attributes);
    }
    if (store) store->Commit(events, attributes);
    const auto all = from.Trials(old.id);
    Log(LogLevel::kInfo,
        fmt::format("warm start with {} of {} trials of study {} in {}; {} of the others are "
                    "finished, but do not fit this space",
                    found.size(), all.size(), old.name, file.string(),
                    std::count_if(all.begin(), all.end(), [](const TrialRecord& record) {
                      return record.state == TrialState::kFinished;
                    }) - static_cast<std::ptrdiff_t>(found.size())));
  }

  // What is finished there and fits this space; categories must be the same ones.
  std::vector<Trial> Translated(const StudyStore& from, const StudyInfo& old) {
    const Json metadata = Json::parse(old.metadata, nullptr, false);
    std::vector<std::ptrdiff_t> places(space.size(), -1);  // Of our parameters, in their points.
    for (std::size_t i = 0; metadata.is_object() && i < space.size(); ++i) {
      const Json mine = Describe(space[i]);
      std::ptrdiff_t place = 0;
      for (const Json& theirs : metadata.value("space", Json::array())) {
        const bool is_same =
            theirs.value("name", "") == space[i].name &&
            (space[i].is_category() ? theirs.value("values", Json()) == mine["values"] &&
                                          theirs.value("choices", Json()) == mine["choices"]
                                    : theirs.value("choices", 0) == 0);
        if (is_same) places[i] = place;
        ++place;
      }
    }
    std::map<std::int64_t, Point> points;
    for (const Attribute& attribute : from.Attributes(old.id)) {
      if (attribute.trial < 0 || attribute.key != kPoint) continue;
      const Json theirs = Json::parse(attribute.value);
      Point& point = points[attribute.trial];
      for (const std::ptrdiff_t place : places) {
        point.push_back(place < 0 ? std::numeric_limits<double>::quiet_NaN()
                                  : ToDouble(theirs.at(static_cast<std::size_t>(place))));
      }
    }
    std::vector<Trial> found;
    for (const TrialRecord& record : from.Trials(old.id)) {
      const auto point = points.find(record.number);
      if (record.state != TrialState::kFinished || record.clones > 0 || point == points.end() ||
          !std::isfinite(record.value))
        continue;
      try {
        space.Check(point->second);
      } catch (const Error&) {
        continue;  // It has a value that this space has not.
      }
      found.push_back({.number = static_cast<std::int64_t>(found.size()),
                       .point = point->second,
                       .state = TrialState::kFinished,
                       .value = record.value,
                       .started = record.started,
                       .ended = record.ended});
    }
    return found;
  }

  // A trial of another study that has been inserted.
  void NoteAdded(const Trial& trial, std::vector<Event>& events,
                 std::vector<Attribute>& attributes) {
    ++added;
    foreign.insert(trial.number);
    events.push_back({.kind = EventKind::kStart, .trial = trial.number, .config = ConfigOf(trial)});
    events.push_back({.kind = EventKind::kFinish, .trial = trial.number, .value = trial.value});
    attributes.push_back(PointOf(trial));
    attributes.push_back({trial.number, kAdded, "true"});
  }

  void Load(std::int64_t study) {
    std::map<std::int64_t, Point> points;
    std::string state;
    for (const Attribute& attribute : store->Attributes(study)) {
      if (attribute.trial < 0 && attribute.key == kScheduler) state = attribute.value;
      if (attribute.key == kAdded) foreign.insert(attribute.trial);
      if (attribute.trial < 0 || attribute.key != kPoint) continue;
      for (const Json& number : Json::parse(attribute.value))
        points[attribute.trial].push_back(ToDouble(number));
    }
    const std::vector<Event> events = store->Events(study);
    const std::vector<ReportRecord> reports = store->Reports(study);
    std::vector<TrialRecord> records = store->Trials(study);
    struct Life {
      std::int64_t step = 0;  // Of the state that is stored.
      std::int64_t source = -1;
      std::int64_t retries = 0;
    };
    std::map<std::int64_t, Life> lives;
    for (const Event& event : events) {
      Life& life = lives[event.trial];
      if (event.kind == EventKind::kSave || event.kind == EventKind::kPause) {
        life.step = event.step;
        life.source = -1;
      } else if (event.kind == EventKind::kResume) {
        life.step = event.step;
        life.source = event.source;
      } else if (event.kind == EventKind::kRetry) {
        ++life.retries;
        mishaps[event.trial] = {event.step, Essence(event.error)};
      }
    }
    std::map<std::int64_t, std::vector<tune::Report>> by_trial;
    for (const ReportRecord& report : reports) {
      // Of a clone, those of its last life, and what came before the state that it took over.
      std::vector<tune::Report>& kept = by_trial[report.trial];
      std::erase_if(kept, [&](const tune::Report& r) { return r.step >= report.step; });
      kept.push_back({report.step, report.value});
    }
    for (const TrialRecord& record : records) {
      Trial trial = {.number = record.number,
                     .point = points.at(record.number),
                     .state = record.state,
                     .value = record.value,
                     .reports = std::move(by_trial[record.number]),
                     .error = record.error,
                     .clones = record.clones,
                     .started = record.started,
                     .ended = record.ended};
      if (record.config != ConfigOf(trial)) trial.config = record.config;
      const Life& life = lives[record.number];
      trial.resumed_step = life.step;
      trial.source = life.source;
      trial.retries = life.retries;
      Insert(trial);
      if (record.state == TrialState::kRunning) ready.push_back(record.number);
    }
    added = static_cast<std::int64_t>(foreign.size());
    has_paused = !state.empty();
    Replay(events, reports, state);
  }

  // The scheduler as it was: from its state of the last decision, or by what it was told from the
  // begin.
  void Replay(const std::vector<Event>& events, const std::vector<ReportRecord>& reports,
              const std::string& state) {
    std::int64_t from = -1;
    if (!state.empty()) {
      scheduler->Restore(state);
      for (const Event& event : events) from = std::max(from, event.sequence);
    }
    auto report = reports.begin();
    const auto tell_until = [&](std::int64_t sequence) {
      for (; report != reports.end() && report->sequence < sequence; ++report) {
        if (report->sequence > from) scheduler->Report(report->trial, report->step, report->value);
      }
    };
    for (const Event& event : events) {
      tell_until(event.sequence);
      if (event.sequence <= from || foreign.contains(event.trial)) continue;
      if (event.kind == EventKind::kStart) {
        scheduler->Next(true);
        scheduler->Start(event.trial, event.config);
      }
      if (event.kind == EventKind::kFinish || event.kind == EventKind::kStop)
        scheduler->Finished(event.trial);
      if (event.kind == EventKind::kFail) scheduler->Failed(event.trial);
    }
    tell_until(std::numeric_limits<std::int64_t>::max());
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
    Begin(trial);
    Trial& kept = trials.back();
    if (kept.state == TrialState::kPaused) {
      --running;
    } else if (kept.state != TrialState::kRunning) {
      End(kept, kept.state);
    }
  }

  void Begin(Trial trial) {
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
  for (const std::string& text : scheduler_notes()) Log(LogLevel::kInfo, text);
  state_->Open();
}

Study::~Study() = default;

const Space& Study::space() const { return state_->space; }
const StudyOptions& Study::options() const { return state_->options; }
const std::string& Study::algorithm() const { return state_->search.algorithm; }
const std::string& Study::note() const { return state_->search.note; }

const std::vector<std::string>& Study::scheduler_notes() const {
  return state_->scheduler->notes();
}

bool Study::CanAsk() {
  const std::lock_guard lock(state_->mutex);
  State& state = *state_;
  if (!state.ready.empty() || state.next_start) return true;
  Task next = state.Next(true);
  if (next.kind == Task::Kind::kResume) {
    state.Resume(next);
  } else if (next.kind == Task::Kind::kStart) {
    state.next_start = std::move(next);
  } else {
    return state.IsOver();
  }
  return true;
}

std::optional<Trial> Study::Ask() {
  const std::lock_guard lock(state_->mutex);
  State& state = *state_;
  if (auto ready = state.TakeReady()) return ready;
  Task next = state.next_start ? *std::exchange(state.next_start, std::nullopt) : state.Next(true);
  if (next.kind == Task::Kind::kStart) {
    if (state.options.batch > 0) state.TellEnds();
    const auto number = static_cast<std::int64_t>(state.trials.size());
    if (std::optional<Point> point = state.Propose(number)) {
      Trial begun = {.number = number,
                     .point = std::move(*point),
                     .config = next.config,
                     .started = state.Now()};
      const std::string config = state.ConfigOf(begun);
      state.scheduler->Start(number, config);
      state.Begin(std::move(begun));
      const Trial& kept = state.trials.back();
      state.Commit({.kind = EventKind::kStart, .trial = number, .config = config},
                   {State::PointOf(kept)});
      return kept;
    }
    state.is_exhausted = true;
    next = state.Next(true);
  }
  if (next.kind == Task::Kind::kResume) {
    state.Resume(next);
    return state.TakeReady();
  }
  if (state.IsOver()) return std::nullopt;
  throw Error(
      Code::kFailedPrecondition,
      state.MayAsk()
          ? fmt::format("the scheduler waits for {} trials that run; tell them first",
                        state.running)
          : fmt::format("{} trials of the batch still run; tell them before the next batch of {}",
                        state.running, state.options.batch));
}

std::optional<Trial> Study::AskAgain() {
  const std::lock_guard lock(state_->mutex);
  State& state = *state_;
  if (state.ready.empty() && !state.next_start) {
    const Task next = state.Next(false);
    if (next.kind == Task::Kind::kResume) state.Resume(next);
  }
  return state.TakeReady();
}

void Study::Tell(std::int64_t number, double value) {
  if (!std::isfinite(value)) {
    Fail(number, fmt::format("its value is {}, which is not a finite number", value));
    return;
  }
  const std::lock_guard lock(state_->mutex);
  Trial& trial = state_->Running(number);
  trial.value = value;
  state_->scheduler->Finished(number);
  state_->Commit({.kind = EventKind::kFinish, .trial = number, .value = value});
  state_->End(trial, TrialState::kFinished);
}

void Study::Fail(std::int64_t number, const std::string& error) {
  const std::lock_guard lock(state_->mutex);
  Trial& trial = state_->Running(number);
  trial.error = error;
  state_->scheduler->Failed(number);
  state_->Commit({.kind = EventKind::kFail, .trial = number, .error = error});
  state_->End(trial, TrialState::kFailed);
}

bool Study::Retry(std::int64_t number, const std::string& error, std::int64_t step) {
  {
    const std::lock_guard lock(state_->mutex);
    State& state = *state_;
    Trial& trial = state.Running(number);
    const auto last = state.mishaps.find(number);
    std::string essence = Essence(error);
    const bool is_same =
        last != state.mishaps.end() && last->second.step == step && last->second.essence == essence;
    if (trial.retries < state.options.retries && !is_same) {
      state.Commit({.kind = EventKind::kRetry, .trial = number, .step = step, .error = error});
      ++trial.retries;
      state.mishaps[number] = {step, std::move(essence)};
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
  const std::lock_guard lock(state_->mutex);
  Trial& trial = state_->Running(number);
  state_->scheduler->Finished(number);
  state_->Stop(trial);
}

Decision Study::AddReport(std::int64_t number, std::int64_t step, double value) {
  const std::lock_guard lock(state_->mutex);
  State& state = *state_;
  Trial& trial = state.Running(number);
  const std::int64_t last = trial.reports.empty() ? 0 : trial.reports.back().step;
  const bool is_known = std::any_of(trial.reports.begin(), trial.reports.end(),
                                    [&](const tune::Report& r) { return r.step == step; });
  if (!is_known && step <= last) {
    throw Error(Code::kInvalidArgument,
                fmt::format("step {} of trial {} does not come after step {}; steps ascend from 1",
                            step, number, last));
  }
  Decision decision = state.scheduler->Report(number, step, value);
  const std::int64_t epochs = state.options.scheduling.epochs;
  if (epochs > 0 && step >= epochs) decision = Decision::kContinue;  // It is through.
  if (!is_known) {
    trial.reports.push_back({step, value});
    if (state.store) state.store->Report(number, step, value);
  }
  if (decision == Decision::kStop) {
    state.Stop(trial);
  } else if (decision != Decision::kContinue) {
    state.has_paused = true;
    const bool pauses = decision == Decision::kPause;
    state.Commit(
        {.kind = pauses ? EventKind::kPause : EventKind::kSave, .trial = number, .step = step});
    if (pauses) {
      trial.state = TrialState::kPaused;
      --state.running;
    }
  }
  return decision;
}

std::int64_t Study::Add(const Trial& trial) {
  const std::lock_guard lock(state_->mutex);
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
  if (state.store) state.store->Commit(events, attributes);
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

std::int64_t Study::added() const {
  const std::lock_guard lock(state_->mutex);
  return state_->added;
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

std::string Study::ConfigText(const Trial& trial) const { return state_->ConfigOf(trial); }

std::optional<std::uint64_t> StoredSeed(const std::filesystem::path& file,
                                        const std::string& name) {
  if (!std::filesystem::exists(file)) return std::nullopt;
  const std::vector<StudyInfo> studies = StudyStore::OpenToRead(file).Studies();
  const auto youngest = std::find_if(studies.rbegin(), studies.rend(),
                                     [&](const StudyInfo& info) { return info.name == name; });
  if (youngest == studies.rend()) return std::nullopt;
  const Json metadata = Json::parse(youngest->metadata, nullptr, false);
  if (!metadata.is_object() || !metadata.contains("seed")) return std::nullopt;
  return metadata["seed"].get<std::uint64_t>();
}

}  // namespace orca::tune
