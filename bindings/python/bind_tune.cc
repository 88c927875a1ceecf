#include "bind_tune.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "orca/core/error.h"
#include "orca/core/log.h"
#include "orca/tune/sampler.h"
#include "orca/tune/space.h"
#include "orca/tune/study.h"
#include "orca/tune/study_monitor.h"
#include "orca/tune/trial_folder.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace orca::bindings {
namespace {

using tune::Parameter;
using tune::Point;
using tune::Space;
using tune::Study;
using tune::Trial;
using tune::TrialState;

TrialState StateOf(const std::string& name) {
  for (const TrialState state : {TrialState::kRunning, TrialState::kPaused, TrialState::kFinished,
                                 TrialState::kPruned, TrialState::kFailed}) {
    if (name == tune::TrialStateName(state)) return state;
  }
  throw Error(Code::kInvalidArgument, "state '" + name +
                                          "' is not known; give running, paused, finished, "
                                          "pruned or failed");
}

// By hand: to a caster of variants True is a number.
std::vector<tune::Value> ValuesOf(const nb::list& given) {
  std::vector<tune::Value> values;
  for (const nb::handle value : given) {
    if (nb::isinstance<nb::bool_>(value)) {
      values.emplace_back(nb::cast<bool>(value));
    } else if (nb::isinstance<nb::int_>(value)) {
      values.emplace_back(nb::cast<std::int64_t>(value));
    } else if (nb::isinstance<nb::float_>(value)) {
      values.emplace_back(nb::cast<double>(value));
    } else {
      values.emplace_back(nb::cast<std::string>(value));
    }
  }
  return values;
}

void BindSpace(nb::module_& m) {
  nb::class_<Parameter>(m, "TuneParameter")
      .def_static("uniform", &tune::Uniform, "name"_a, "low"_a, "high"_a)
      .def_static("quniform", &tune::QUniform, "name"_a, "low"_a, "high"_a, "step"_a)
      .def_static("loguniform", &tune::LogUniform, "name"_a, "low"_a, "high"_a)
      .def_static("qloguniform", &tune::QLogUniform, "name"_a, "low"_a, "high"_a, "step"_a)
      .def_static("randn", &tune::Normal, "name"_a, "mean"_a, "deviation"_a)
      .def_static("qrandn", &tune::QNormal, "name"_a, "mean"_a, "deviation"_a, "step"_a)
      .def_static("randint", &tune::Integer, "name"_a, "low"_a, "high"_a)
      .def_static("qrandint", &tune::QInteger, "name"_a, "low"_a, "high"_a, "step"_a)
      .def_static("lograndint", &tune::LogInteger, "name"_a, "low"_a, "high"_a)
      .def_static("qlograndint", &tune::QLogInteger, "name"_a, "low"_a, "high"_a, "step"_a)
      .def_static(
          "choice",
          [](std::string name, const nb::list& values) {
            return tune::Choice(std::move(name), ValuesOf(values));
          },
          "name"_a, "values"_a)
      .def_static(
          "grid",
          [](std::string name, const nb::list& values) {
            return tune::Grid(std::move(name), ValuesOf(values));
          },
          "name"_a, "values"_a)
      .def_static("subset", &tune::Subset, "name"_a, "choices"_a, "min"_a, "max"_a)
      .def("when", &tune::When, "parent"_a, "choice"_a)
      .def("check", &Parameter::Check, "value"_a)
      .def_ro("name", &Parameter::name)
      .def_prop_ro("is_integer", &Parameter::is_integer);

  nb::class_<Space>(m, "TuneSpace")
      .def(nb::init<std::vector<Parameter>>(), "parameters"_a)
      .def("draw", &Space::Draw, "seed"_a, "trial"_a)
      .def(
          "complete",
          [](const Space& self, Point point) {
            self.Complete(point, 0, 0);
            return point;
          },
          "point"_a)
      .def_prop_ro("grid_cells", &Space::grid_cells)
      .def_prop_ro("has_grid", &Space::has_grid)
      .def_prop_ro("cardinality", &Space::Cardinality)
      .def_prop_ro("size", &Space::size);
}

void BindTrial(nb::module_& m) {
  nb::class_<Trial>(m, "TuneTrial")
      .def(
          "__init__",
          [](Trial* self, std::int64_t number, Point point, const std::string& state,
             std::optional<double> value,
             const std::vector<std::pair<std::int64_t, double>>& reports, std::string error) {
            new (self) Trial{.number = number, .point = std::move(point), .state = StateOf(state)};
            if (value) self->value = *value;
            for (const auto& [step, report] : reports) self->reports.push_back({step, report});
            self->error = std::move(error);
          },
          "number"_a, "point"_a, "state"_a, "value"_a.none(), "reports"_a, "error"_a)
      .def_ro("number", &Trial::number)
      .def_ro("point", &Trial::point)
      .def_prop_ro("state", [](const Trial& self) { return tune::TrialStateName(self.state); })
      .def_prop_ro("value",
                   [](const Trial& self) {
                     return self.state == TrialState::kFinished ? std::optional(self.value)
                                                                : std::nullopt;
                   })
      .def_prop_ro("reports",
                   [](const Trial& self) {
                     std::vector<std::pair<std::int64_t, double>> reports;
                     for (const tune::Report& report : self.reports) {
                       reports.emplace_back(report.step, report.value);
                     }
                     return reports;
                   })
      .def_ro("error", &Trial::error)
      .def_ro("resumed_step", &Trial::resumed_step)
      .def_ro("source", &Trial::source)
      .def_ro("config", &Trial::config)
      .def_ro("memo", &Trial::memo)
      .def_ro("clones", &Trial::clones)
      .def_ro("retries", &Trial::retries)
      .def_ro("started", &Trial::started)
      .def_ro("ended", &Trial::ended);
}

// Functions of the user, by their keys: called with the interpreter's lock, while the study is
// locked. So nobody waits for a study with the interpreter's lock.
tune::SchedulerOptions Scheduling(std::int64_t epochs, bool ignore_unknown, const nb::dict& draws,
                                  const nb::object& explore) {
  tune::SchedulerOptions options{.epochs = epochs, .ignore_unknown = ignore_unknown};
  for (const auto& [key, function] : draws) {
    options.draws[nb::cast<std::string>(key)] =
        [call = nb::borrow<nb::callable>(function)](std::uint64_t random) {
          const nb::gil_scoped_acquire lock;
          return nb::cast<std::string>(call(random));
        };
  }
  if (!explore.is_none()) {
    options.explore = [call = nb::borrow<nb::callable>(explore)](const std::string& config,
                                                                 std::int64_t source) {
      const nb::gil_scoped_acquire lock;
      return nb::cast<std::string>(call(config, source));
    };
  }
  return options;
}

void BindStudy(nb::module_& m) {
  nb::class_<Study>(m, "TuneStudy")
      .def(
          "__init__",
          [](Study* self, const Space& space, bool maximize, std::string search_alg,
             std::map<std::string, double> parameters, std::uint64_t seed, std::int64_t batch,
             std::vector<Point> points, std::int64_t budget, bool allow_duplicates,
             std::string scheduler, std::string scheduler_parameters, std::int64_t epochs,
             std::filesystem::path file, std::string name, std::string metric, bool resume,
             bool full_sync, std::int64_t retries, std::filesystem::path warm_start,
             std::string constants, bool ignore_unknown, const nb::dict& draws,
             const nb::object& explore) {
            new (self) Study(
                space,
                {.mode = maximize ? tune::Mode::kMax : tune::Mode::kMin,
                 .search_alg = std::move(search_alg),
                 .scheduler = std::move(scheduler),
                 .scheduler_parameters = std::move(scheduler_parameters),
                 .scheduling = Scheduling(epochs, ignore_unknown, draws, explore),
                 .storage = {.file = std::move(file),
                             .name = std::move(name),
                             .metric = std::move(metric),
                             .constants = std::move(constants),
                             .resume = resume,
                             .full_sync = full_sync},
                 .points = std::move(points),
                 .search = {.seed = seed, .parameters = std::move(parameters), .budget = budget},
                 .batch = batch,
                 .allow_duplicates = allow_duplicates,
                 .retries = retries,
                 .warm_start = std::move(warm_start)});
          },
          "space"_a, "maximize"_a, "search_alg"_a, "parameters"_a, "seed"_a, "batch"_a, "points"_a,
          "budget"_a, "allow_duplicates"_a, "scheduler"_a, "scheduler_parameters"_a, "epochs"_a,
          "file"_a, "name"_a, "metric"_a, "resume"_a, "full_sync"_a, "retries"_a, "warm_start"_a,
          "constants"_a = "{}", "ignore_unknown"_a = false, "draws"_a = nb::dict(),
          "explore"_a = nb::none())
      .def_prop_ro("algorithm", &Study::algorithm)
      .def_prop_ro("may_pause", &Study::may_pause)
      .def_prop_ro("changes_configs", &Study::changes_configs)
      .def_prop_ro("learns", &Study::learns)
      .def_prop_ro("note", &Study::note)
      .def_prop_ro("scheduler_notes", &Study::scheduler_notes)
      .def_prop_ro("memo", &Study::memo, nb::call_guard<nb::gil_scoped_release>())
      .def("set_memo", nb::overload_cast<const std::string&>(&Study::SetMemo), "memo"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("set_memo", nb::overload_cast<std::int64_t, const std::string&>(&Study::SetMemo),
           "number"_a, "memo"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("take_stopped", &Study::TakeStopped, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "policy_files", [](const Study& self) { return tune::PolicyFiles(self.Policies()); },
          nb::call_guard<nb::gil_scoped_release>())
      .def("can_ask", &Study::CanAsk, nb::call_guard<nb::gil_scoped_release>())
      // A proposal may take a while, and others may tell meanwhile.
      .def("ask", &Study::Ask, nb::call_guard<nb::gil_scoped_release>())
      .def("ask_again", &Study::AskAgain, nb::call_guard<nb::gil_scoped_release>())
      .def("tell", &Study::Tell, "number"_a, "value"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "tell_and_ask",
          [](Study& self, const std::vector<std::pair<std::int64_t, double>>& told,
             std::int64_t wanted) {
            const nb::gil_scoped_release unlocked;
            std::vector<Study::Told> ended;
            for (const auto& [number, value] : told)
              ended.push_back({.number = number, .value = value});
            return self.TellAndAsk(ended, wanted);
          },
          "told"_a, "wanted"_a)
      .def("fail", &Study::Fail, "number"_a, "error"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("retry", &Study::Retry, "number"_a, "error"_a, "step"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("prune", &Study::Prune, "number"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "add_report",
          [](Study& self, std::int64_t number, std::int64_t step, double value) {
            return tune::DecisionName(self.AddReport(number, step, value));
          },
          "number"_a, "step"_a, "value"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("add", &Study::Add, "trial"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("restore", &Study::Restore, "trial"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("config_text", &Study::ConfigText, "trial"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("at", &Study::At, "number"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("trials", &Study::Trials, nb::call_guard<nb::gil_scoped_release>())
      .def("best", &Study::Best, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("size", &Study::size, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("added", &Study::added, nb::call_guard<nb::gil_scoped_release>());
}

void BindFolder(nb::module_& m) {
  using tune::TrialFolder;
  nb::class_<TrialFolder>(m, "TrialFolder")
      .def(nb::init<std::filesystem::path, std::string, double>(), "folder"_a, "metric"_a,
           "began"_a)
      .def("begin", &TrialFolder::Begin, "config"_a, "hparams"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def(
          "add",
          [](TrialFolder& self, std::int64_t step, double value, double best, double seconds) {
            self.Add({.step = step, .value = value, .best = best, .seconds = seconds});
          },
          "step"_a, "value"_a, "best"_a, "seconds"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("end", &TrialFolder::End, "has_failed"_a, nb::call_guard<nb::gil_scoped_release>());
}

void BindMonitor(nb::module_& m) {
  using tune::StudyMonitor;
  nb::class_<StudyMonitor>(m, "TuneMonitor")
      .def(
          "__init__",
          [](StudyMonitor* self, const Study& study, std::int64_t trials, double seconds,
             bool is_terminal, bool by_best_report, double now) {
            const nb::gil_scoped_release unlocked;
            new (self) StudyMonitor(study,
                                    {.trials = trials,
                                     .seconds = seconds,
                                     .is_terminal = is_terminal,
                                     .by_best_report = by_best_report},
                                    now);
          },
          nb::keep_alive<1, 2>(), "study"_a, "trials"_a, "seconds"_a, "is_terminal"_a,
          "by_best_report"_a, "now"_a)
      .def("show", &StudyMonitor::Show, "now"_a, "columns"_a, "rows"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("table", &StudyMonitor::Table, nb::call_guard<nb::gil_scoped_release>());
  // Without the interpreter's lock: who logs may hold it, and waits for us.
  nb::class_<LogFooter>(m, "LogFooter")
      .def(nb::init<>())
      .def("show", &LogFooter::Show, "lines"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("clear", &LogFooter::Clear, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

void BindTune(nb::module_& m) {
  BindSpace(m);
  BindTrial(m);
  BindStudy(m);
  BindMonitor(m);
  BindFolder(m);
  m.def("tune_stored_seed", &tune::StoredSeed, "file"_a, "name"_a);
  m.def("tune_search_names", &tune::SearchNames);
  m.def("tune_search_parameters", &tune::SearchParameters, "name"_a);
  m.def("tune_ignored_search_parameters", &tune::IgnoredSearchParameters, "name"_a);
}

}  // namespace orca::bindings
