// What a study leaves in its store, and how it goes on from there.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <exception>
#include <map>
#include <unordered_map>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/log.h"
#include "orca/tune/study_view.h"
#include "tune/schedulers/json.h"
#include "tune/study_state.h"

namespace orca::tune {
namespace {

constexpr const char* kPoint = "point";           // A trial's attribute.
constexpr const char* kAdded = "added";           // A trial's: it is of another study.
constexpr const char* kMemo = "memo";             // A trial's, or the study's.
constexpr const char* kScheduler = "scheduler";   // The study's.
constexpr const char* kPolicy = "policy-";        // The study's, with a number behind it.
constexpr const char* kWarmStart = "warm_start";  // The study's: where added trials are from.

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
               {"constants", Json::parse(options.storage.constants)},
               {"metric", options.storage.metric},
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
  // Nor did they say these.
  if (before.is_object() && !before.contains("constants")) before["constants"] = now["constants"];
  if (before.is_object()) before["metric"] = stored.metric;
  for (const auto& [key, value] : now.items()) {
    if (before.is_object() && before.contains(key) && before[key] == value) continue;
    throw Error(
        Code::kFailedPrecondition,
        fmt::format("study '{}' in {} was begun with another {}; give the same, another name, "
                    "or resume nothing",
                    stored.name, file.string(), key));
  }
}

// What PointOf() wrote. Numbers are read here: a study of 100,000 trials has a million of them.
Point ParsePoint(std::string_view text) {
  Point point;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    if (*at == '[' || *at == ',' || *at == ']') {
      ++at;
      continue;
    }
    double number = 0;
    const auto read = std::from_chars(at, end, number);
    if (read.ec != std::errc()) break;
    point.push_back(number);
    at = read.ptr;
  }
  if (at == end) return point;
  point.clear();  // It has what JSON has no number for.
  for (const Json& number : Json::parse(text)) point.push_back(ToDouble(number));
  return point;
}

Attribute PointOf(const Trial& trial) {
  Json point = Json::array();
  for (const double number : trial.point) point.push_back(tune::ToJson(number));
  return {trial.number, kPoint, point.dump()};
}

}  // namespace

void Study::State::Commit(Event event, std::vector<Attribute> attributes) {
  if (!store) return;
  held.push_back(std::move(event));
  std::move(attributes.begin(), attributes.end(), std::back_inserter(held_attributes));
  if (!holds) CommitHeld();
}

void Study::State::CommitHeld() {
  holds = false;
  const std::vector<Event> events = std::exchange(held, {});
  std::vector<Attribute> attributes = std::exchange(held_attributes, {});
  if (events.empty()) return;
  if (has_paused && scheduler->changes_configs())
    attributes.push_back({-1, kScheduler, scheduler->State()});
  Write(events, attributes);
}

void Study::State::Write(std::span<const Event> events, std::span<const Attribute> attributes) {
  try {
    store->Commit(events, attributes);
  } catch (const std::exception& error) {
    failure = error.what();
    throw;
  }
}

void Study::State::WriteReport(std::int64_t trial, std::int64_t step, double value) {
  if (!store) return;
  try {
    store->Report(trial, step, value);
  } catch (const std::exception& error) {
    failure = error.what();
    throw;
  }
}

void Study::State::WriteMemo(std::int64_t trial, const std::string& text) {
  if (store) Write({}, std::vector<Attribute>{{trial, kMemo, text}});
}

Attribute Study::State::PolicyOf(const Task& resumed) {
  policies.push_back(resumed.policy);
  return {-1, fmt::format("{}{:09d}", kPolicy, policies.size()), resumed.policy};
}

std::string Study::State::ConfigOf(const Trial& trial) const {
  if (!trial.config.empty()) return trial.config;
  Json config = Json::object();
  for (std::size_t i = 0; i < space.size(); ++i) {
    if (!std::isnan(trial.point[i]))
      config[space[i].name] = ToJson(space[i].Decode(trial.point[i]));
  }
  return config.dump();
}

void Study::State::CommitStart(const Trial& trial, const std::string& config) {
  Commit({.kind = EventKind::kStart, .trial = trial.number, .config = config}, {PointOf(trial)});
}

void Study::State::Open() {
  const StudyStorage& storage = options.storage;
  if (storage.file.empty()) {
    WarmStart();
    return;
  }
  // What is no file of studies is refused before there is one of ours.
  if (!options.warm_start.empty() && !std::filesystem::exists(storage.file))
    StudyStore::OpenToRead(FindStudyFile(options.warm_start));
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

void Study::State::WarmStart() {
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
  if (store) Write(events, attributes);
  const auto all = from.Trials(old.id);
  Log(LogLevel::kInfo,
      fmt::format("warm start with {} of {} trials of study {} in {}; {} of the others are "
                  "finished, but do not fit this space",
                  found.size(), all.size(), old.name, file.string(),
                  std::count_if(all.begin(), all.end(), [](const TrialRecord& record) {
                    return record.state == TrialState::kFinished;
                  }) - static_cast<std::ptrdiff_t>(found.size())));
}

std::vector<Trial> Study::State::Translated(const StudyStore& from, const StudyInfo& old) {
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

void Study::State::NoteAdded(const Trial& trial, std::vector<Event>& events,
                             std::vector<Attribute>& attributes) {
  ++added;
  foreign.insert(trial.number);
  events.push_back({.kind = EventKind::kStart, .trial = trial.number, .config = ConfigOf(trial)});
  events.push_back({.kind = EventKind::kFinish, .trial = trial.number, .value = trial.value});
  attributes.push_back(PointOf(trial));
  attributes.push_back({trial.number, kAdded, "true"});
}

void Study::State::Load(std::int64_t study) {
  struct Life {
    Point point;
    std::string memo;
    std::int64_t step = 0;  // Of the state that is stored.
    std::int64_t source = -1;
    std::int64_t retries = 0;
    std::vector<tune::Report> reports;
    std::vector<tune::Report> at_pause;  // Those that there were when it paused last.
  };
  std::vector<TrialRecord> records = store->Trials(study);
  std::vector<Life> lives(records.size() + 1);  // The last: of trials that a salvaged file lost.
  const auto life_of = [&](std::int64_t trial) -> Life& {
    return lives[std::min(static_cast<std::size_t>(trial), records.size())];
  };
  std::string state;
  for (const Attribute& attribute : store->Attributes(study)) {  // By trial and key.
    if (attribute.trial < 0) {
      if (attribute.key == kScheduler) state = attribute.value;
      if (attribute.key == kMemo) memo = attribute.value;
      if (attribute.key.starts_with(kPolicy)) policies.push_back(attribute.value);
      continue;
    }
    if (attribute.key == kAdded) foreign.insert(attribute.trial);
    if (attribute.key == kMemo) life_of(attribute.trial).memo = attribute.value;
    if (attribute.key == kPoint) life_of(attribute.trial).point = ParsePoint(attribute.value);
  }
  const std::vector<Event> events = store->Events(study);
  const std::vector<ReportRecord> reports = store->Reports(study);
  auto report = reports.begin();
  const auto take_until = [&](std::int64_t sequence) {
    for (; report != reports.end() && report->sequence < sequence; ++report) {
      life_of(report->trial).reports.push_back({report->step, report->value});
    }
  };
  for (const Event& event : events) {
    take_until(event.sequence);
    Life& life = life_of(event.trial);
    if (event.kind == EventKind::kSave || event.kind == EventKind::kPause) {
      life.step = event.step;
      life.source = -1;
    } else if (event.kind == EventKind::kResume) {
      life.step = event.step;
      life.source = event.source;
      if (event.source < 0) continue;
      std::erase_if(life.reports,
                    [&](const tune::Report& one) { return one.step > event.source_step; });
    } else if (event.kind == EventKind::kRetry) {
      ++life.retries;
      mishaps[event.trial] = Mishap(event.step, event.error);
    }
    if (event.kind == EventKind::kPause) life.at_pause = life.reports;
  }
  take_until(std::numeric_limits<std::int64_t>::max());
  for (const TrialRecord& record : records) {
    if (record.number != static_cast<std::int64_t>(trials.size()))
      throw Error(Code::kFailedPrecondition,
                  fmt::format("{0} has lost trial {1}: the study cannot go on; begin another "
                              "one with warm_start=\"{0}\"",
                              options.storage.file.string(), trials.size()));
    Life& life = life_of(record.number);
    Trial trial = {.number = record.number,
                   .point = std::move(life.point),
                   .state = record.state,
                   .value = record.value,
                   .reports = life.reports,
                   .error = record.error,
                   .clones = record.clones,
                   .memo = std::move(life.memo),
                   .started = record.started,
                   .ended = record.ended};
    if (scheduler->changes_configs() && record.config != ConfigOf(trial))
      trial.config = record.config;
    trial.resumed_step = life.step;
    trial.source = life.source;
    trial.retries = life.retries;
    if (record.state == TrialState::kRunning && !life.at_pause.empty()) {
      // The sampler knows what it was when it paused, until it ends.
      trial.state = TrialState::kPaused;
      trial.reports = life.at_pause;
    }
    Insert(trial);
    if (record.state == TrialState::kRunning) ready.push_back(record.number);
  }
  for (const std::int64_t number : ready) {
    Trial& trial = trials[static_cast<std::size_t>(number)];
    if (trial.state == TrialState::kRunning) continue;
    trial.state = TrialState::kRunning;
    trial.reports = std::move(life_of(number).reports);
    ++running;
  }
  added = static_cast<std::int64_t>(foreign.size());
  has_paused = !state.empty();
  Replay(events, reports, state);
}

namespace {

// What was decided over each report: its trial's next event says so.
std::vector<Decision> Decisions(const std::vector<Event>& events,
                                const std::vector<ReportRecord>& reports) {
  std::vector<Decision> decisions(reports.size(), Decision::kContinue);
  std::unordered_map<std::int64_t, const Event*> next;  // of a trial
  auto event = events.rbegin();
  for (std::size_t i = reports.size(); i-- > 0;) {
    for (; event != events.rend() && event->sequence > reports[i].sequence; ++event) {
      next[event->trial] = &*event;
    }
    const auto found = next.find(reports[i].trial);
    if (found == next.end() || found->second->step != reports[i].step) continue;
    if (found->second->kind == EventKind::kPause) decisions[i] = Decision::kPause;
    if (found->second->kind == EventKind::kSave) decisions[i] = Decision::kSave;
  }
  return decisions;
}

}  // namespace

void Study::State::Replay(const std::vector<Event>& events,
                          const std::vector<ReportRecord>& reports, const std::string& state) {
  std::int64_t last_event = -1;
  for (const Event& event : events) last_event = std::max(last_event, event.sequence);
  std::int64_t from = -1;
  if (scheduler->changes_configs() && !state.empty()) {
    scheduler->Restore(state);
    from = last_event;
  }
  const std::vector<Decision> decisions = Decisions(events, reports);
  std::size_t at = 0;
  const auto tell_until = [&](std::int64_t sequence) {
    for (; at < reports.size() && reports[at].sequence < sequence; ++at) {
      const ReportRecord& one = reports[at];
      if (one.sequence <= from) continue;
      if (one.trial >= static_cast<std::int64_t>(trials.size())) continue;  // Salvage lost it.
      // A report is never stored before what was decided over it: where there is nothing, it went
      // on.
      scheduler->Note(one.trial, one.step, one.value, decisions[at]);
    }
  };
  std::unordered_set<std::int64_t> paused;
  for (const Event& event : events) {
    tell_until(event.sequence);
    if (event.sequence <= from || foreign.contains(event.trial)) continue;
    switch (event.kind) {
      case EventKind::kStart:
        // It may have been said long before, which only those remember.
        if (scheduler->changes_configs()) scheduler->Next(true);
        scheduler->Start(event.trial, event.config);
        break;
      case EventKind::kPause:
        paused.insert(event.trial);
        break;
      case EventKind::kResume:
        paused.erase(event.trial);
        DecideAgain(Task::Kind::kResume, event.trial);
        break;
      case EventKind::kStop:
        if (paused.erase(event.trial) > 0) DecideAgain(Task::Kind::kStop, event.trial);
        scheduler->Finished(event.trial);
        break;
      case EventKind::kFinish:
        scheduler->Finished(event.trial);
        break;
      case EventKind::kFail:
        scheduler->Failed(event.trial);
        break;
      case EventKind::kSave:
      case EventKind::kRetry:
        break;
    }
  }
  tell_until(std::numeric_limits<std::int64_t>::max());
}

void Study::State::DecideAgain(Task::Kind kind, std::int64_t trial) {
  const Task task = scheduler->Next(false);
  if (task.kind == kind && task.trial == trial) return;
  throw Error(Code::kFailedPrecondition,
              fmt::format("{0} is damaged: what is stored of trial {1} does not fit its scheduler; "
                          "begin another study with warm_start=\"{0}\"",
                          options.storage.file.string(), trial));
}

std::optional<std::uint64_t> StoredSeed(const std::filesystem::path& file,
                                        const std::string& name) {
  std::vector<StudyInfo> studies;
  try {
    studies = StudyStore::OpenToRead(file).Studies();
  } catch (const Error& error) {
    if (error.code() != Code::kUnavailable) throw;  // There is none, or somebody died making it.
  }
  const auto youngest = std::find_if(studies.rbegin(), studies.rend(),
                                     [&](const StudyInfo& info) { return info.name == name; });
  if (youngest == studies.rend()) return std::nullopt;
  const Json metadata = Json::parse(youngest->metadata, nullptr, false);
  if (!metadata.is_object() || !metadata.contains("seed")) return std::nullopt;
  return metadata["seed"].get<std::uint64_t>();
}

}  // namespace orca::tune
