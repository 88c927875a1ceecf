#include "orca/tune/study_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "orca/core/error.h"
#include "tune/study_page.h"

namespace orca::tune {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kTableRows = 50;
constexpr std::size_t kPageTrials = 5000;
constexpr std::size_t kPageCurves = 300;
constexpr std::size_t kPageBytes = std::size_t{16} << 20;  // of trials; a browser opens no more
constexpr std::size_t kPageKeys = 200;
constexpr std::size_t kPageText = 300;

// Configurations are what users gave: texts may hold anything.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json ParseConfig(const std::string& text) {
  Json config = Json::parse(text, nullptr, false);
  return config.is_object() ? config : Json{{"config", text}};
}

/// "a/b" -> value; lists are values.
void Flatten(const Json& config, const std::string& prefix, std::map<std::string, Json>& flat) {
  for (const auto& [key, value] : config.items()) {
    if (value.is_object() && !value.empty()) {
      Flatten(value, prefix + key + "/", flat);
    } else {
      flat[prefix + key] = value;
    }
  }
}

std::map<std::string, Json> FlatConfig(const TrialRecord& trial) {
  std::map<std::string, Json> flat;
  Flatten(ParseConfig(trial.config), "", flat);
  return flat;
}

std::string PlainText(const Json& value) {
  return value.is_string() ? value.get<std::string>() : Dump(value);
}

std::string NumberText(double value) { return std::isnan(value) ? "" : fmt::format("{}", value); }

std::map<std::int64_t, std::int64_t> LastSteps(const StudyView& view) {
  std::map<std::int64_t, std::int64_t> steps;
  for (const auto& report : view.reports) steps[report.trial] = report.step;
  return steps;
}

double SecondsOf(const TrialRecord& trial) {
  return trial.ended > 0 ? trial.ended - trial.started : std::nan("");
}

std::string QuoteCsv(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char letter : text)
    quoted += letter == '"' ? std::string("\"\"") : std::string(1, letter);
  return quoted + "\"";
}

// Which trials count, the best first.
void Rank(StudyView& view, bool with_pruned) {
  for (std::size_t i = 0; i < view.trials.size(); ++i) {
    const TrialRecord& trial = view.trials[i];
    ++view.counts.at(static_cast<std::size_t>(trial.state));
    const bool counts =
        trial.state == TrialState::kFinished || (with_pruned && trial.state == TrialState::kPruned);
    if (counts && !std::isnan(trial.value)) view.ranking.push_back(i);
  }
  const double sign = view.info.mode == "max" ? -1 : 1;
  std::stable_sort(view.ranking.begin(), view.ranking.end(), [&](std::size_t a, std::size_t b) {
    return sign * view.trials[a].value < sign * view.trials[b].value;
  });
}

// Where an error says what it is: tracebacks begin with how it came.
std::string LastLine(const std::string& error) {
  const std::size_t end = error.find_last_not_of(" \r\n");
  if (end == std::string::npos) return "";
  const std::size_t begin = error.rfind('\n', end);
  return "  " + OneLine(error.substr(begin == std::string::npos ? 0 : begin + 1,
                                     end - (begin == std::string::npos ? 0 : begin + 1) + 1),
                        80);
}

Json CountsOf(const StudyView& view) {
  Json counts = Json::object();
  for (std::size_t i = 0; i < view.counts.size(); ++i)
    counts[TrialStateName(static_cast<TrialState>(i))] = view.counts[i];
  return counts;
}

Json StudyOf(const StudyView& view) {
  Json study{{"id", view.info.id},
             {"name", view.info.name},
             {"created", view.info.created},
             {"metric", view.info.metric},
             {"mode", view.info.mode},
             {"metadata", Json::parse(view.info.metadata, nullptr, false)}};
  if (study["metadata"].is_discarded()) study["metadata"] = view.info.metadata;
  return study;
}

Json TrialOf(const TrialRecord& trial) {
  return {{"number", trial.number},   {"state", TrialStateName(trial.state)},
          {"value", trial.value},     {"config", ParseConfig(trial.config)},
          {"started", trial.started}, {"seconds", SecondsOf(trial)},
          {"clones", trial.clones},   {"error", trial.error}};
}

// Inside of a page no text of a user ends the element that holds it.
std::string PageText(const Json& json) {
  std::string safe;
  for (const char letter : Dump(json)) {
    if (letter == '<') {
      safe += "\\u003c";
    } else {
      safe += letter;
    }
  }
  return safe;
}

Json ForPage(const Json& value) {
  const std::string text = PlainText(value);
  return text.size() <= kPageText ? value : Json(OneLine(text, kPageText));
}

Json ConfigForPage(const TrialRecord& trial) {
  Json config = Json::object();
  for (const auto& [key, value] : FlatConfig(trial)) {
    if (config.size() == kPageKeys) break;
    config[OneLine(key, kPageText)] = ForPage(value);
  }
  return config;
}

}  // namespace

std::string OneLine(std::string text, std::size_t most) {
  // Also those of a terminal's commands that begin beyond 127, as UTF-8 has them.
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto letter = static_cast<unsigned char>(text[i]);
    if (letter < 32 || letter == 127) text[i] = ' ';
    if (letter == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0)
      text[i] = text[i + 1] = ' ';
  }
  if (text.size() <= most) return text;
  std::size_t end = most - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // UTF-8
  return text.substr(0, end) + "...";
}

std::filesystem::path FindStudyFile(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return path;
  if (std::filesystem::exists(path / "study.db")) return path / "study.db";
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    if (entry.path().extension() == ".db") found.push_back(entry.path());
  if (found.size() != 1)
    throw Error(Code::kInvalidArgument,
                fmt::format("{} has {} files of studies (*.db); give the file", path.string(),
                            found.empty() ? "no" : std::to_string(found.size())));
  return found[0];
}

StudyView ViewStudy(const StudyStore& store, std::int64_t study) {
  const auto studies = store.Studies();
  const auto found = study == 0
                         ? studies.end() - (studies.empty() ? 0 : 1)
                         : std::find_if(studies.begin(), studies.end(),
                                        [&](const StudyInfo& info) { return info.id == study; });
  if (found == studies.end()) {
    std::vector<std::string> known;
    for (const auto& info : studies) known.push_back(fmt::format("{} ({})", info.id, info.name));
    throw Error(Code::kInvalidArgument,
                fmt::format("there is no study{}; there are: {}",
                            study == 0 ? "" : fmt::format(" {}", study),
                            known.empty() ? "none" : fmt::to_string(fmt::join(known, ", "))));
  }
  StudyView view{.info = *found,
                 .trials = store.Trials(found->id),
                 .reports = store.Reports(found->id),
                 .ranking = {}};
  Rank(view, true);
  return view;
}

StudyView ViewStudy(const Study& study, bool by_best_report) {
  const StudyOptions& options = study.options();
  const bool is_max = options.mode == Mode::kMax;
  StudyView view{.info = {.name = options.storage.name,
                          .metric = options.storage.metric,
                          .mode = is_max ? "max" : "min"},
                 .trials = {},
                 .reports = {},
                 .ranking = {}};
  for (const Trial& trial : study.Trials()) {
    TrialRecord record{.number = trial.number,
                       .state = trial.state,
                       .config = study.ConfigText(trial),
                       .value = trial.value,
                       .clones = trial.clones,
                       .started = trial.started,
                       .ended = trial.ended,
                       .error = trial.error};
    for (const Report& report : trial.reports) {
      view.reports.push_back({.trial = trial.number, .step = report.step, .value = report.value});
      const bool is_better = is_max ? report.value > record.value : report.value < record.value;
      if (by_best_report && (is_better || std::isnan(record.value))) record.value = report.value;
    }
    if (trial.state == TrialState::kPruned && std::isnan(record.value) && !trial.reports.empty())
      record.value = trial.reports.back().value;
    if (trial.state == TrialState::kFailed) record.value = std::nan("");
    view.trials.push_back(std::move(record));
    if (view.info.created == 0) view.info.created = trial.started;
  }
  Rank(view, by_best_report);
  return view;
}

std::string ShortConfig(const std::string& config) {
  std::map<std::string, Json> flat;
  Flatten(ParseConfig(config), "", flat);
  std::string text;
  for (const auto& [key, value] : flat) {
    text += fmt::format(
        "{}{}={}", text.empty() ? "" : " ", key,
        value.is_number_float() ? fmt::format("{:.4g}", value.get<double>()) : PlainText(value));
  }
  return text;
}

std::string StudyTable(const StudyView& view) {
  const auto began = static_cast<std::time_t>(view.info.created);
  std::tm local{};
  ::localtime_r(&began, &local);
  std::array<char, 32> time{};
  std::strftime(time.data(), time.size(), "%Y-%m-%d %H:%M:%S", &local);
  const std::string id = view.info.id == 0 ? "" : fmt::format(" {}", view.info.id);
  std::string text =
      fmt::format("study{} ({}), began {}, {} of {}\n", id, OneLine(view.info.name, 100),
                  time.data(), view.info.mode, OneLine(view.info.metric, 100));
  text += fmt::format("{} trials:", view.trials.size());
  for (std::size_t i = 0; i < view.counts.size(); ++i)
    text += fmt::format("{} {} {}", i > 0 ? "," : "", view.counts[i],
                        TrialStateName(static_cast<TrialState>(i)));
  text += "\n";
  if (!view.ranking.empty()) {
    const TrialRecord& best = view.trials[view.ranking[0]];
    text += fmt::format("best: {} in trial {}\n", best.value, best.number);
    for (const auto& [key, value] : FlatConfig(best))
      text += fmt::format("  {} = {}\n", OneLine(key, 60), OneLine(PlainText(value), 100));
  }
  std::vector<std::size_t> rows = view.ranking;
  const std::set<std::size_t> ranked(rows.begin(), rows.end());
  for (std::size_t i = 0; i < view.trials.size(); ++i)
    if (!ranked.contains(i)) rows.push_back(i);
  if (rows.empty()) return text;
  const auto steps = LastSteps(view);
  text += fmt::format("\n{:>7} {:<9} {:>14} {:>6} {:>9}  {}\n", "TRIAL", "STATE", "VALUE", "STEP",
                      "SECONDS", "CONFIGURATION");
  for (std::size_t i = 0; i < std::min(rows.size(), kTableRows); ++i) {
    const TrialRecord& trial = view.trials[rows[i]];
    std::string config;
    for (const auto& [key, value] : FlatConfig(trial))
      config += fmt::format("{}{}={}", config.empty() ? "" : " ", key, PlainText(value));
    const auto step = steps.find(trial.number);
    const double seconds = SecondsOf(trial);
    text += fmt::format("{:>7} {:<9} {:>14} {:>6} {:>9}  {}{}\n", trial.number,
                        TrialStateName(trial.state),
                        std::isnan(trial.value) ? "" : fmt::format("{:.8g}", trial.value),
                        step == steps.end() ? "" : std::to_string(step->second),
                        std::isnan(seconds) ? "" : fmt::format("{:.1f}", seconds),
                        OneLine(config, 120), LastLine(trial.error));
  }
  if (rows.size() > kTableRows)
    text += fmt::format("... and {} more; --csv gives all\n", rows.size() - kTableRows);
  return text;
}

std::string StudyCsv(const StudyView& view) {
  std::set<std::string> keys;
  for (const auto& trial : view.trials)
    for (const auto& [key, value] : FlatConfig(trial)) keys.insert(key);
  const auto steps = LastSteps(view);
  std::string text = "trial,state,value,step,clones,started,seconds,error";
  for (const auto& key : keys) text += "," + QuoteCsv("config/" + key);
  text += "\n";
  for (const auto& trial : view.trials) {
    const auto step = steps.find(trial.number);
    text += fmt::format("{},{},{},{},{},{:.3f},{},{}", trial.number, TrialStateName(trial.state),
                        NumberText(trial.value),
                        step == steps.end() ? "" : std::to_string(step->second), trial.clones,
                        trial.started, NumberText(SecondsOf(trial)), QuoteCsv(trial.error));
    const auto config = FlatConfig(trial);
    for (const auto& key : keys) {
      const auto value = config.find(key);
      text += "," + (value == config.end() ? "" : QuoteCsv(PlainText(value->second)));
    }
    text += "\n";
  }
  return text;
}

std::string StudyJson(const StudyView& view) {
  std::map<std::int64_t, Json> reports;
  for (const auto& report : view.reports) {
    Json& list = reports[report.trial];
    list.push_back({{"step", report.step}, {"value", report.value}, {"clones", report.clones}});
  }
  Json trials = Json::array();
  for (const auto& trial : view.trials) {
    Json entry = TrialOf(trial);
    const auto found = reports.find(trial.number);
    entry["reports"] = found == reports.end() ? Json::array() : std::move(found->second);
    trials.push_back(std::move(entry));
  }
  Json study{{"study", StudyOf(view)}, {"counts", CountsOf(view)}, {"trials", std::move(trials)}};
  study["best"] = view.ranking.empty() ? Json() : Json(view.trials[view.ranking[0]].number);
  return Dump(study) + "\n";
}

std::string StudyPage(const StudyView& view) {
  // The ranked ones and, behind them, the youngest of the others.
  std::vector<std::size_t> shown(
      view.ranking.begin(), view.ranking.begin() + static_cast<std::ptrdiff_t>(
                                                       std::min(view.ranking.size(), kPageTrials)));
  const std::set<std::size_t> ranked(view.ranking.begin(), view.ranking.end());
  for (std::size_t i = view.trials.size(); i > 0 && shown.size() < kPageTrials; --i)
    if (!ranked.contains(i - 1)) shown.push_back(i - 1);
  std::map<std::int64_t, Json> curves;
  for (std::size_t i = 0; i < std::min(shown.size(), kPageCurves); ++i)
    curves[view.trials[shown[i]].number] = Json::array();
  for (const auto& report : view.reports)
    if (const auto curve = curves.find(report.trial); curve != curves.end())
      curve->second.push_back({report.clones, report.step, report.value});
  Json trials = Json::array();
  std::size_t bytes = 0;
  for (const std::size_t i : shown) {
    const TrialRecord& trial = view.trials[i];
    const auto curve = curves.find(trial.number);
    Json entry{{"number", trial.number},         {"state", TrialStateName(trial.state)},
               {"value", trial.value},           {"seconds", SecondsOf(trial)},
               {"config", ConfigForPage(trial)}, {"error", OneLine(trial.error, kPageText)}};
    bytes += PageText(entry).size();
    if (bytes > kPageBytes) break;
    entry["curve"] = curve == curves.end() ? Json::array() : std::move(curve->second);
    trials.push_back(std::move(entry));
  }
  Json study = StudyOf(view);
  for (Json& value : study) value = ForPage(value);
  const std::string data = PageText({{"study", std::move(study)},
                                     {"counts", CountsOf(view)},
                                     {"total", view.trials.size()},
                                     {"curves", kPageCurves},
                                     {"trials", std::move(trials)}});
  std::string page(kStudyPage);
  constexpr std::string_view kPlace = "@DATA@";
  return page.replace(page.find(kPlace), kPlace.size(), data);
}

}  // namespace orca::tune
