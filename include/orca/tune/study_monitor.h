// How far a study is, for whoever watches it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "orca/core/export.h"
#include "orca/tune/study.h"

namespace orca::tune {

struct MonitorOptions {
  std::int64_t trials = 0;   ///< How many there will be; 0: not known.
  double seconds = 0;        ///< After which no trial is started; 0: not known.
  bool is_terminal = false;  ///< Whether what was drawn can be drawn over.
  /// Whether trials count by the best of their reports; else by their values.
  bool by_best_report = false;
};

/// Describes a study while it goes on: for a terminal a table, to be put in the place of the one
/// before (LogFooter), else a line now and then. It writes nothing itself, and reads no clock.
///
/// One thread. The study must outlive it.
class ORCA_API StudyMonitor {
 public:
  /// The study goes on from here; `now` are seconds of any clock that only moves forward.
  StudyMonitor(const Study& study, const MonitorOptions& options, double now);

  /// What to show now, on a terminal of that size; empty: nothing.
  std::string Show(double now, std::size_t columns, std::size_t rows);
  /// For the end: counts, the best configuration, and the best trials.
  std::string Table() const;

 private:
  std::string Block(double now, std::size_t columns, std::size_t rows) const;
  std::string Line(double now) const;
  std::string Time(const StudyProgress& progress, double now) const;

  const Study& study_;
  MonitorOptions options_;
  double began_;
  std::int64_t ended_before_;  // Trials that are of an earlier run of the study.
  double next_;                // When the next line is due.
};

}  // namespace orca::tune
