#include "orca/tune/study_monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "orca/tune/study_view.h"

namespace orca::tune {
namespace {

constexpr double kFirstTable = 0.5;  // Seconds: shorter searches need none.
constexpr double kFirstLine = 10;
constexpr double kRarestLine = 300;
constexpr std::size_t kMostRunning = 16;
constexpr std::size_t kOtherLines = 6;  // Of a table, and a free one.

std::int64_t Count(const StudyProgress& progress, TrialState state) {
  return progress.counts.at(static_cast<std::size_t>(state));
}

std::int64_t Ended(const StudyProgress& progress) {
  return Count(progress, TrialState::kFinished) + Count(progress, TrialState::kPruned) +
         Count(progress, TrialState::kFailed);
}

std::int64_t Begun(const StudyProgress& progress) {
  return Ended(progress) + Count(progress, TrialState::kRunning) +
         Count(progress, TrialState::kPaused);
}

std::string Duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::max(0.0, seconds));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string Counts(const StudyProgress& progress) {
  std::string text;
  for (std::size_t i = 0; i < progress.counts.size(); ++i) {
    const auto state = static_cast<TrialState>(i);
    if (state == TrialState::kPaused && progress.counts.at(i) == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", progress.counts.at(i),
                        TrialStateName(state));
  }
  return text;
}

}  // namespace

StudyMonitor::StudyMonitor(const Study& study, const MonitorOptions& options, double now)
    : study_(study),
      options_(options),
      began_(now),
      ended_before_(Ended(study.Progress())),
      next_(now + (options.is_terminal ? kFirstTable : kFirstLine)) {}

std::string StudyMonitor::Show(double now, std::size_t columns, std::size_t rows) {
  if (now < next_) return "";
  if (!options_.is_terminal) {
    next_ = now + std::clamp((now - began_) / 5, kFirstLine, kRarestLine);
    return Line(now) + "\n";
  }
  return Block(now, std::max<std::size_t>(columns, 40), rows);
}

std::string StudyMonitor::Table() const {
  return StudyTable(ViewStudy(study_, options_.by_best_report));
}

std::string StudyMonitor::Time(const StudyProgress& progress, double now) const {
  const double elapsed = now - began_;
  std::string text = Duration(elapsed) + " passed";
  double left = std::numeric_limits<double>::infinity();
  if (options_.trials > ended_before_) {
    const auto epochs = study_.options().scheduling.epochs;
    const double parts =
        epochs > 0 ? static_cast<double>(progress.steps) / static_cast<double>(epochs) : 0;
    const double part = (static_cast<double>(Ended(progress) - ended_before_) + parts) /
                        static_cast<double>(options_.trials - ended_before_);
    if (part > 0) left = elapsed * std::max(0.0, 1 - part) / part;
  }
  if (options_.seconds > 0) left = std::min(left, std::max(0.0, options_.seconds - elapsed));
  return std::isinf(left) ? text : fmt::format("{}, about {} left", text, Duration(left));
}

std::string StudyMonitor::Line(double now) const {
  const StudyProgress progress = study_.Progress();
  const std::string of = options_.trials > 0 ? fmt::format(" of {}", options_.trials) : "";
  std::string text = fmt::format("{}{} trials: {}; ", Begun(progress), of, Counts(progress));
  if (progress.best >= 0) {
    text += fmt::format("best {} {:.6g} by trial {}; ", study_.options().storage.metric,
                        progress.best_value, progress.best);
  }
  return text + Time(progress, now);
}

std::string StudyMonitor::Block(double now, std::size_t columns, std::size_t rows) const {
  const std::size_t most = rows > kOtherLines ? std::min(rows - kOtherLines, kMostRunning) : 0;
  const StudyProgress progress = study_.Progress(most);
  const StudyOptions& options = study_.options();
  const std::string of = options_.trials > 0 ? fmt::format(" of {}", options_.trials) : "";
  std::string text;
  const auto add = [&](const std::string& line) { text += OneLine(line, columns - 1) + "\n"; };
  add(fmt::format("{}: {}{} trials, {}", options.storage.name, Begun(progress), of,
                  Time(progress, now)));
  add(Counts(progress));
  if (progress.best >= 0) {
    add(fmt::format("best {} so far {:.6g} in trial {}: {}", options.storage.metric,
                    progress.best_value, progress.best,
                    ShortConfig(study_.ConfigText(study_.At(progress.best)))));
  }
  if (!progress.running.empty())
    add(fmt::format("{:>7} {:>9} {:>12}  {}", "RUNNING", "STEP", "VALUE", "CONFIGURATION"));
  for (const Trial& trial : progress.running) {
    const bool has = !trial.reports.empty();
    const std::string step = has ? std::to_string(trial.reports.back().step) : "0";
    const auto epochs = options.scheduling.epochs;
    add(fmt::format("{:>7} {:>9} {:>12}  {}", trial.number,
                    epochs > 0 ? fmt::format("{}/{}", step, epochs) : step,
                    has ? fmt::format("{:.6g}", trial.reports.back().value) : "",
                    ShortConfig(study_.ConfigText(trial))));
  }
  const auto more =
      Count(progress, TrialState::kRunning) - static_cast<std::int64_t>(progress.running.size());
  if (more > 0 && most > 0) add(fmt::format("        and {} more", more));
  return text;
}

}  // namespace orca::tune
