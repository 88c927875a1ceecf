// A study as people and other programs look at it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "orca/core/export.h"
#include "orca/tune/store.h"
#include "orca/tune/study.h"

namespace orca::tune {

/// The file of studies of `path`: itself, or the one in that folder (study.db, or the only *.db).
/// Throws kInvalidArgument when there is none or the choice is not clear.
ORCA_API std::filesystem::path FindStudyFile(const std::filesystem::path& path);

/// All of one study, at one moment of its life.
struct StudyView {
  StudyInfo info;
  std::vector<TrialRecord> trials;    ///< By number.
  std::vector<ReportRecord> reports;  ///< In the order in which they came.
  /// The trials that count as results, the best first: finished and pruned ones with a value. Of
  /// equal ones the older is better.
  std::vector<std::size_t> ranking;
  /// How many trials are in each TrialState.
  std::array<std::int64_t, 5> counts{};
};

/// Reads a study by its id; 0: the youngest. Throws kInvalidArgument when it is not there, naming
/// those that are.
ORCA_API StudyView ViewStudy(const StudyStore& store, std::int64_t study = 0);

/// A study of this process. `by_best_report`: trials count by the best of their reports, pruned
/// ones too; else finished ones by their values.
ORCA_API StudyView ViewStudy(const Study& study, bool by_best_report = false);

/// A configuration on one line, "a/b=0.1 c=2".
ORCA_API std::string ShortConfig(const std::string& config);
/// `text` without line breaks, of at most so many bytes.
ORCA_API std::string OneLine(std::string text, std::size_t most);

/// For a terminal: counts, the best configuration, and the best 50 trials.
ORCA_API std::string StudyTable(const StudyView& view);
/// One line a trial; a column for every key of the configurations, nested ones as "a/b".
ORCA_API std::string StudyCsv(const StudyView& view);
/// Everything, with the reports of each trial. What is no finite number is null.
ORCA_API std::string StudyJson(const StudyView& view);
/// One page that needs nothing else: history, learning curves, parallel coordinates and a table.
/// Large studies are drawn by their best trials.
ORCA_API std::string StudyPage(const StudyView& view);

}  // namespace orca::tune
