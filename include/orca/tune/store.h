// Where studies are kept: trials, reports and decisions in one SQLite file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "orca/core/export.h"
#include "orca/tune/trial.h"

namespace orca::tune {

/// What a study is; `id` and `created` are the store's.
struct StudyInfo {
  std::int64_t id = 0;
  std::string name;
  double created = 0;  ///< Seconds since 1970.
  std::string metric;
  std::string mode = "min";     ///< Or "max".
  std::string metadata = "{}";  ///< JSON: space, seed, names, versions.
};

/// A trial as it was committed last.
struct TrialRecord {
  std::int64_t number = 0;
  TrialState state = TrialState::kRunning;
  std::string config;                                       ///< JSON; after a clone the new one.
  double value = std::numeric_limits<double>::quiet_NaN();  ///< NaN: none.
  std::int64_t clones = 0;  ///< How often it took over another trial's state.
  double started = 0;
  double ended = 0;   ///< 0: it has not ended.
  std::string error;  ///< Of a failed one.
};

/// One report. A trial that was cloned may report a step again: `clones` tells them apart.
struct ReportRecord {
  std::int64_t sequence = 0;  ///< Orders reports and decisions of a study.
  std::int64_t trial = 0;
  std::int64_t clones = 0;
  std::int64_t step = 0;
  double value = 0;  ///< May be NaN.
  double time = 0;
};

/// What was decided over a trial.
enum class EventKind {
  kStart = 0,   ///< With `config`.
  kSave = 1,    ///< Its state is stored at `step`.
  kPause = 2,   ///< At `step`.
  kResume = 3,  ///< With `source`: a clone of that trial at `source_step`.
  kStop = 4,    ///< Pruned, with `value`.
  kFinish = 5,  ///< With `value`.
  kFail = 6,    ///< With `error`.
  kRetry = 7,   ///< It met `error` behind `step`, and runs again.
};
/// "start", "save", "pause", "resume", "stop", "finish", "fail" or "retry".
ORCA_API const char* EventKindName(EventKind kind);

struct Event {
  EventKind kind = EventKind::kStart;
  std::int64_t trial = 0;
  std::int64_t step = 0;
  std::string config = {};  ///< JSON; empty: as it was.
  std::int64_t source = -1;
  std::int64_t source_step = 0;
  double value = std::numeric_limits<double>::quiet_NaN();
  std::string error = {};
  std::int64_t sequence = 0;  ///< The store's.
  double time = 0;            ///< The store's.
};

/// JSON by name: of the study (`trial` -1: e.g. the state of PBT), or of a trial.
struct Attribute {
  std::int64_t trial = -1;
  std::string key;
  std::string value;
};

struct StoreOptions {
  /// Commits reach the disk before they return: they outlive the machine's power, not only the
  /// process.
  bool full_sync = false;
  /// Seconds since 1970; empty: the system's clock.
  std::function<double()> clock = {};
};

/// A file of studies, one of which may be written.
///
/// Commit() returns when its decisions are in the file: a killed process loses no decision that it
/// acted on. Reports wait in memory for the next commit; a tail that is lost is reported again by
/// trials that go on from their checkpoints. One process writes a file at a time; any number read
/// it meanwhile. One thread.
class ORCA_API StudyStore {
 public:
  /// Opens `file` to write, and makes it when it is missing. Throws kFailedPrecondition when
  /// another writer has it (naming its process), when it is damaged, of a newer format, or no file
  /// of studies.
  static StudyStore Open(const std::filesystem::path& file, const StoreOptions& options = {});
  /// Opens `file` to read; nothing is locked, no writer is held up.
  static StudyStore OpenToRead(const std::filesystem::path& file);
  StudyStore(StudyStore&&) noexcept;
  StudyStore& operator=(StudyStore&&) noexcept;
  ~StudyStore();

  /// Begins a study beside those that are there; it is the one that is written.
  StudyInfo Create(const StudyInfo& info);
  /// Goes on with the youngest study of that name; nothing when there is none.
  std::optional<StudyInfo> Resume(std::string_view name);

  /// Writes decisions, the reports before them and attributes, all or nothing. Throws
  /// kFailedPrecondition for a decision that does not fit its trial: a start of one that is there,
  /// anything for one that has ended.
  void Commit(std::span<const Event> events, std::span<const Attribute> attributes = {});
  void Commit(const Event& event) { Commit(std::span(&event, 1)); }
  /// Of a trial that runs. A step that is there already keeps its value.
  void Report(std::int64_t trial, std::int64_t step, double value);
  /// Writes the reports that wait.
  void Flush();

  /// The oldest first.
  std::vector<StudyInfo> Studies() const;
  std::vector<TrialRecord> Trials(std::int64_t study) const;
  /// In the order in which they came; `trial` -1: of all.
  std::vector<ReportRecord> Reports(std::int64_t study, std::int64_t trial = -1) const;
  std::vector<Event> Events(std::int64_t study) const;
  std::vector<Attribute> Attributes(std::int64_t study) const;

 private:
  struct Parts;
  explicit StudyStore(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

/// What SalvageStudies() read.
struct Salvaged {
  std::filesystem::path kept;  ///< The damaged file.
  std::int64_t studies = 0;
  std::int64_t trials = 0;
  std::int64_t reports = 0;
};
/// Puts a new file in the place of a damaged one, with all rows that can be read and belong to a
/// study and a trial that can be; the damaged one stays as "<file>.damaged-1" (or the next number).
/// Throws kFailedPrecondition when nothing can be read; then all stays as it is.
ORCA_API Salvaged SalvageStudies(const std::filesystem::path& file);

}  // namespace orca::tune
