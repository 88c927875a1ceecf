#include "orca/tune/store.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <unordered_map>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/log.h"
#include "orca/core/nesting.h"
#include "tune/sqlite.h"
#include "tune/writer_lock.h"

namespace orca::tune {
namespace {

constexpr std::int64_t kApplication = 0x4F726361;  // "Orca"
constexpr std::int64_t kFormat = 2;                // 1: without retries
constexpr std::size_t kMostWaiting = 1000;         // reports

// Sequence numbers go on over all studies of a file: the largest is found at once.
constexpr const char* kSchema = R"(
  CREATE TABLE studies (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL, created REAL NOT NULL, metric TEXT NOT NULL, mode TEXT NOT NULL,
    metadata TEXT NOT NULL);
  CREATE TABLE trials (
    study INTEGER NOT NULL, number INTEGER NOT NULL, state INTEGER NOT NULL, config TEXT NOT NULL,
    value REAL, clones INTEGER NOT NULL, started REAL NOT NULL, ended REAL NOT NULL,
    error TEXT NOT NULL,
    PRIMARY KEY (study, number)) WITHOUT ROWID;
  CREATE TABLE reports (
    sequence INTEGER PRIMARY KEY,
    study INTEGER NOT NULL, trial INTEGER NOT NULL, clones INTEGER NOT NULL, step INTEGER NOT NULL,
    value REAL, time REAL NOT NULL,
    UNIQUE (study, trial, clones, step));
  CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    study INTEGER NOT NULL, kind INTEGER NOT NULL, trial INTEGER NOT NULL, step INTEGER NOT NULL,
    config TEXT NOT NULL, source INTEGER NOT NULL, source_step INTEGER NOT NULL, value REAL,
    error TEXT NOT NULL, time REAL NOT NULL);
  CREATE TABLE attributes (
    study INTEGER NOT NULL, trial INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (study, trial, key)) WITHOUT ROWID;
)";

// What runs the words of a file's author when it is read.
constexpr const char* kForeignParts = R"(
  SELECT (SELECT count(*) FROM sqlite_schema
          WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%') +
         (SELECT count(*) FROM sqlite_schema AS s, pragma_table_xinfo(s.name)
          WHERE s.type = 'table' AND hidden > 1)
)";

// JSON that is followed on the stack by whoever reads it.
std::string JsonText(const Statement& rows, int column, const Database& database) {
  std::string text = rows.Text(column);
  if (IsShallowJson(text)) return text;
  throw Error(Code::kFailedPrecondition,
              fmt::format("{} is damaged: a value of it nests more than {} lists or dicts",
                          database.file().string(), kMaxNesting));
}

// Before it is written: nobody could read it.
void CheckNesting(std::string_view json, const char* what) {
  if (IsShallowJson(json)) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("{} nests more than {} lists or dicts; flatten it", what, kMaxNesting));
}

double SystemClock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

[[noreturn]] void Foreign(const Database& database) {
  throw Error(Code::kFailedPrecondition,
              fmt::format("{} is no file of studies; give another file", database.file().string()));
}

/// Whether the file is new. Throws for a file that is not ours.
bool CheckFormat(Database& database) {
  std::int64_t application = 0;
  try {
    application = database.Number("PRAGMA application_id");
  } catch (const Error& error) {
    if (error.code() == Code::kFailedPrecondition) Foreign(database);  // no SQLite at all
    throw;
  }
  const std::int64_t format = database.Number("PRAGMA user_version");
  if (application == 0 && format == 0 && database.Number("SELECT count(*) FROM sqlite_schema") == 0)
    return true;
  if (application != kApplication) Foreign(database);
  if (database.Number(kForeignParts) > 0)
    throw Error(
        Code::kFailedPrecondition,
        fmt::format("{} has a view, a trigger, or a column or table that is computed, as no "
                    "file of studies has; give another file",
                    database.file().string()));
  if (format > kFormat)
    throw Error(Code::kFailedPrecondition,
                fmt::format("{} has format {}; this build reads up to {}: use a newer orca",
                            database.file().string(), format, kFormat));
  return false;
}

void CreateTables(Database& database) {
  Transaction transaction(database);
  database.Run(kSchema);
  database.Run(
      fmt::format("PRAGMA application_id={}; PRAGMA user_version={}", kApplication, kFormat)
          .c_str());
  transaction.Commit();
}

void Prepare(Database& database, bool full_sync) {
  const bool is_new = CheckFormat(database);
  if (!is_new) {  // before anything is written
    const std::string found = database.Text("PRAGMA quick_check(1)");
    if (found != "ok")
      throw Error(Code::kFailedPrecondition,
                  fmt::format("{} is damaged ({}); \"orca tune salvage {}\" keeps what can be read",
                              database.file().string(), found, database.file().string()));
  }
  // Six times the disk would be waited for before there is anything to lose.
  if (is_new && !full_sync) database.Run("PRAGMA synchronous=OFF");
  database.Run("PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=8000");
  if (is_new) CreateTables(database);
  database.Run(full_sync ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL");
}

constexpr std::array<const char*, 5> kStates{"running", "paused", "finished", "pruned", "failed"};
constexpr std::array<const char*, 8> kKinds{"start", "save",   "pause", "resume",
                                            "stop",  "finish", "fail",  "retry"};

template <typename Enum, std::size_t size>
Enum Checked(std::int64_t value, const std::array<const char*, size>& /*names*/) {
  if (value < 0 || value >= static_cast<std::int64_t>(size))
    throw Error(Code::kFailedPrecondition,
                fmt::format("the file of studies is damaged: {} is no state", value));
  return static_cast<Enum>(value);
}

struct Transition {
  std::int64_t from;  // the two states that allow it
  std::int64_t or_from;
  std::int64_t to;
};

Transition TransitionOf(EventKind kind) {
  constexpr auto kRunning = static_cast<std::int64_t>(TrialState::kRunning);
  constexpr auto kPaused = static_cast<std::int64_t>(TrialState::kPaused);
  switch (kind) {
    case EventKind::kStart:  // inserts its trial
    case EventKind::kSave:
    case EventKind::kRetry:
      return {kRunning, kRunning, kRunning};
    case EventKind::kPause:
      return {kRunning, kRunning, kPaused};
    case EventKind::kResume:
      return {kPaused, kPaused, kRunning};
    case EventKind::kStop:
      return {kRunning, kPaused, static_cast<std::int64_t>(TrialState::kPruned)};
    case EventKind::kFinish:
      return {kRunning, kPaused, static_cast<std::int64_t>(TrialState::kFinished)};
    case EventKind::kFail:
      break;
  }
  return {kRunning, kPaused, static_cast<std::int64_t>(TrialState::kFailed)};
}

bool Ends(EventKind kind) {
  return kind == EventKind::kStop || kind == EventKind::kFinish || kind == EventKind::kFail;
}

}  // namespace

const char* TrialStateName(TrialState state) { return kStates.at(static_cast<std::size_t>(state)); }
const char* EventKindName(EventKind kind) { return kKinds.at(static_cast<std::size_t>(kind)); }

struct StudyStore::Parts {
  Parts(const std::filesystem::path& file, const StoreOptions& options)
      : lock(std::make_unique<WriterLock>(file)),
        database(file, Database::Access::kWrite),
        clock(options.clock ? options.clock : SystemClock) {
    Prepare(database, options.full_sync);
    statements = std::make_unique<Writing>(database);
    sequence = database.Number(
        "SELECT max(ifnull((SELECT max(sequence) FROM reports), 0), "
        "ifnull((SELECT max(sequence) FROM events), 0))");
  }
  explicit Parts(const std::filesystem::path& file) : database(file, Database::Access::kRead) {
    if (CheckFormat(database))
      throw Error(Code::kUnavailable, fmt::format("{} has no studies yet", file.string()));
  }

  struct Writing {
    explicit Writing(const Database& database)
        : report(database, "INSERT OR IGNORE INTO reports VALUES (?, ?, ?, ?, ?, ?, ?)"),
          event(database, "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"),
          start(database, "INSERT OR IGNORE INTO trials VALUES (?, ?, 0, ?, NULL, 0, ?, 0, '')"),
          change(database,
                 "UPDATE trials SET state = ?3, config = CASE ?4 WHEN '' THEN config ELSE ?4 END, "
                 "clones = clones + ?5, value = ifnull(?6, value), ended = ?7, error = ?8 "
                 "WHERE study = ?1 AND number = ?2 AND state IN (?9, ?10)"),
          attribute(database, "INSERT OR REPLACE INTO attributes VALUES (?, ?, ?, ?)") {}
    Statement report;
    Statement event;
    Statement start;
    Statement change;
    Statement attribute;
  };

  void CheckWriting() const {
    if (!lock)
      throw Error(Code::kFailedPrecondition,
                  fmt::format("{} was opened to read", database.file().string()));
    if (study == 0)
      throw Error(Code::kFailedPrecondition,
                  "no study is being written; call Create or Resume first");
  }

  void Write(const Event& event, double now);
  void WriteReports();
  std::int64_t SequenceAfter() { return ++sequence; }

  std::unique_ptr<WriterLock> lock;  // none: only read
  Database database;
  std::function<double()> clock;
  std::unique_ptr<Writing> statements;
  std::int64_t study = 0;
  std::int64_t sequence = 0;
  std::unordered_map<std::int64_t, std::int64_t> live;  // trial -> clones
  std::vector<ReportRecord> waiting;
};

void StudyStore::Parts::WriteReports() {
  for (const auto& report : waiting)
    statements->report
        .Bind(report.sequence, study, report.trial, report.clones, report.step, report.value,
              report.time)
        .Run();
}

void StudyStore::Parts::Write(const Event& event, double now) {
  const bool is_start = event.kind == EventKind::kStart;
  // Builds that know only format 1 must not read it from now on.
  if (event.kind == EventKind::kRetry)
    database.Run(fmt::format("PRAGMA user_version={}", kFormat).c_str());
  if (is_start) {
    statements->start.Bind(study, event.trial, event.config, now).Run();
  } else {
    const Transition allowed = TransitionOf(event.kind);
    const std::int64_t clones = event.kind == EventKind::kResume && event.source >= 0 ? 1 : 0;
    statements->change
        .Bind(study, event.trial, allowed.to, event.config, clones, event.value,
              Ends(event.kind) ? now : 0.0,
              event.kind == EventKind::kRetry ? std::string() : event.error, allowed.from,
              allowed.or_from)
        .Run();
  }
  if (database.changes() != 1) {
    Statement state(database, "SELECT state FROM trials WHERE study = ? AND number = ?");
    const char* found = state.Bind(study, event.trial).Step()
                            ? TrialStateName(Checked<TrialState>(state.Int(0), kStates))
                            : "not there";
    throw Error(Code::kFailedPrecondition,
                fmt::format("\"{}\" does not fit trial {}, which is {}", EventKindName(event.kind),
                            event.trial, found));
  }
  statements->event
      .Bind(SequenceAfter(), study, static_cast<std::int64_t>(event.kind), event.trial, event.step,
            event.config, event.source, event.source_step, event.value, event.error, now)
      .Run();
}

StudyStore::StudyStore(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
StudyStore::StudyStore(StudyStore&&) noexcept = default;
StudyStore& StudyStore::operator=(StudyStore&&) noexcept = default;

StudyStore::~StudyStore() {
  if (!parts_ || parts_->waiting.empty()) return;
  try {
    Flush();
  } catch (const Error& error) {
    Log(LogLevel::kWarning, fmt::format("reports are lost: {}", error.what()));
  }
}

StudyStore StudyStore::Open(const std::filesystem::path& file, const StoreOptions& options) {
  return StudyStore(std::make_unique<Parts>(file, options));
}

StudyStore StudyStore::OpenToRead(const std::filesystem::path& file) {
  return StudyStore(std::make_unique<Parts>(file));
}

StudyInfo StudyStore::Create(const StudyInfo& info) {
  if (!parts_->lock) parts_->CheckWriting();
  if (info.mode != "min" && info.mode != "max")
    throw Error(Code::kInvalidArgument,
                fmt::format("mode \"{}\" is neither \"min\" nor \"max\"", info.mode));
  CheckNesting(info.metadata, "what a study is made of");
  Flush();
  StudyInfo made = info;
  made.created = parts_->clock();
  Transaction transaction(parts_->database);
  Statement(parts_->database,
            "INSERT INTO studies (name, created, metric, mode, metadata) VALUES (?, ?, ?, ?, ?)")
      .Bind(made.name, made.created, made.metric, made.mode, made.metadata)
      .Run();
  made.id = parts_->database.Number("SELECT last_insert_rowid()");
  transaction.Commit();
  parts_->study = made.id;
  parts_->live.clear();
  return made;
}

std::optional<StudyInfo> StudyStore::Resume(std::string_view name) {
  if (!parts_->lock) parts_->CheckWriting();
  Flush();
  std::optional<StudyInfo> found;
  for (auto& study : Studies())
    if (study.name == name) found = std::move(study);
  if (!found) return std::nullopt;
  parts_->study = found->id;
  parts_->live.clear();
  Statement live(parts_->database,
                 "SELECT number, clones FROM trials WHERE study = ? AND state IN (0, 1)");
  for (live.Bind(found->id); live.Step();) parts_->live[live.Int(0)] = live.Int(1);
  return found;
}

void StudyStore::Commit(std::span<const Event> events, std::span<const Attribute> attributes) {
  parts_->CheckWriting();
  for (const auto& event : events) CheckNesting(event.config, "a configuration");
  for (const auto& attribute : attributes) CheckNesting(attribute.value, "a value of the study");
  const double now = parts_->clock();
  Transaction transaction(parts_->database);
  parts_->WriteReports();
  for (const auto& event : events) parts_->Write(event, now);
  for (const auto& attribute : attributes)
    parts_->statements->attribute
        .Bind(parts_->study, attribute.trial, attribute.key, attribute.value)
        .Run();
  transaction.Commit();
  parts_->waiting.clear();
  for (const auto& event : events) {
    if (event.kind == EventKind::kStart) parts_->live[event.trial] = 0;
    if (event.kind == EventKind::kResume && event.source >= 0) ++parts_->live[event.trial];
    if (Ends(event.kind)) parts_->live.erase(event.trial);
  }
}

void StudyStore::Report(std::int64_t trial, std::int64_t step, double value) {
  parts_->CheckWriting();
  const auto found = parts_->live.find(trial);
  if (found == parts_->live.end())
    throw Error(Code::kFailedPrecondition,
                fmt::format("trial {} is not running; only a running one reports", trial));
  // Not with this one: what is decided over it has to be in the same commit.
  if (parts_->waiting.size() >= kMostWaiting) Flush();
  parts_->waiting.push_back({.sequence = parts_->SequenceAfter(),
                             .trial = trial,
                             .clones = found->second,
                             .step = step,
                             .value = value,
                             .time = parts_->clock()});
}

void StudyStore::Flush() {
  if (!parts_->waiting.empty()) Commit(std::span<const Event>{});
}

std::vector<StudyInfo> StudyStore::Studies() const {
  std::vector<StudyInfo> studies;
  Statement rows(parts_->database,
                 "SELECT id, name, created, metric, mode, metadata FROM studies ORDER BY id");
  while (rows.Step())
    studies.push_back({.id = rows.Int(0),
                       .name = rows.Text(1),
                       .created = rows.Double(2),
                       .metric = rows.Text(3),
                       .mode = rows.Text(4),
                       .metadata = JsonText(rows, 5, parts_->database)});
  return studies;
}

std::vector<TrialRecord> StudyStore::Trials(std::int64_t study) const {
  std::vector<TrialRecord> trials;
  Statement rows(parts_->database,
                 "SELECT number, state, config, value, clones, started, ended, error FROM trials "
                 "WHERE study = ? ORDER BY number");
  for (rows.Bind(study); rows.Step();)
    trials.push_back({.number = rows.Int(0),
                      .state = Checked<TrialState>(rows.Int(1), kStates),
                      .config = JsonText(rows, 2, parts_->database),
                      .value = rows.Double(3),
                      .clones = rows.Int(4),
                      .started = rows.Double(5),
                      .ended = rows.Double(6),
                      .error = rows.Text(7)});
  return trials;
}

std::vector<ReportRecord> StudyStore::Reports(std::int64_t study, std::int64_t trial) const {
  std::vector<ReportRecord> reports;
  // The unary plus keeps all reports from being sorted: they are in the order of their sequence.
  Statement rows(
      parts_->database,
      trial < 0
          ? "SELECT sequence, trial, clones, step, value, time FROM reports WHERE +study = ? "
            "ORDER BY sequence"
          : "SELECT sequence, trial, clones, step, value, time FROM reports WHERE study = ? AND "
            "trial = ? ORDER BY sequence");
  trial < 0 ? rows.Bind(study) : rows.Bind(study, trial);
  while (rows.Step())
    reports.push_back({.sequence = rows.Int(0),
                       .trial = rows.Int(1),
                       .clones = rows.Int(2),
                       .step = rows.Int(3),
                       .value = rows.Double(4),
                       .time = rows.Double(5)});
  return reports;
}

std::vector<Event> StudyStore::Events(std::int64_t study) const {
  std::vector<Event> events;
  Statement rows(parts_->database,
                 "SELECT kind, trial, step, config, source, source_step, value, error, sequence, "
                 "time FROM events WHERE study = ? ORDER BY sequence");
  for (rows.Bind(study); rows.Step();)
    events.push_back({.kind = Checked<EventKind>(rows.Int(0), kKinds),
                      .trial = rows.Int(1),
                      .step = rows.Int(2),
                      .config = JsonText(rows, 3, parts_->database),
                      .source = rows.Int(4),
                      .source_step = rows.Int(5),
                      .value = rows.Double(6),
                      .error = rows.Text(7),
                      .sequence = rows.Int(8),
                      .time = rows.Double(9)});
  return events;
}

std::vector<Attribute> StudyStore::Attributes(std::int64_t study) const {
  std::vector<Attribute> attributes;
  Statement rows(parts_->database,
                 "SELECT trial, key, value FROM attributes WHERE study = ? ORDER BY trial, key");
  for (rows.Bind(study); rows.Step();)
    attributes.push_back(
        {.trial = rows.Int(0), .key = rows.Text(1), .value = JsonText(rows, 2, parts_->database)});
  return attributes;
}

namespace {

struct Table {
  const char* name;
  const char* valid;
  const char* ascending;
  const char* descending;
};
constexpr std::array<Table, 5> kTables{
    {{"studies", "mode IN ('min', 'max')", "id", "id DESC"},
     {"trials", "state BETWEEN 0 AND 4", "study, number", "study DESC, number DESC"},
     {"reports", "1", "sequence", "sequence DESC"},
     {"events", "kind BETWEEN 0 AND 7", "sequence", "sequence DESC"},
     {"attributes", "1", "study, trial, key", "study DESC, trial DESC, key DESC"}}};

/// Copies what can be read from the front, and from the back up to the damage.
void CopyTable(const Database& from, Database& to, const Table& table) {
  for (const char* order : {table.ascending, table.descending}) {
    try {
      Statement rows(
          from, fmt::format("SELECT * FROM {} WHERE {} ORDER BY {}", table.name, table.valid, order)
                    .c_str());
      const std::vector<std::string> places(static_cast<std::size_t>(rows.columns()), "?");
      Statement insert(to, fmt::format("INSERT OR IGNORE INTO {} VALUES ({})", table.name,
                                       fmt::join(places, ", "))
                               .c_str());
      while (rows.Step()) insert.BindRow(rows).Run();
      break;
    } catch (const Error& error) {
      // No table, no SQLite, damage: what is copied by now stays. A full disk is no damage.
      if (error.code() == Code::kResourceExhausted || error.code() == Code::kUnavailable) throw;
    }
  }
}

std::filesystem::path WithSuffix(const std::filesystem::path& file, const std::string& suffix) {
  return file.string() + suffix;
}

}  // namespace

Salvaged SalvageStudies(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file))
    throw Error(Code::kInvalidArgument, fmt::format("there is no file {}", file.string()));
  const WriterLock lock(file);
  const auto draft = WithSuffix(file, ".salvage");
  std::filesystem::remove(draft);
  Salvaged salvaged;
  {
    Database from(file, Database::Access::kRead);
    from.Run("PRAGMA writable_schema=ON");  // lets SQLite read files that were cut
    Database to(draft, Database::Access::kWrite);
    CreateTables(to);
    Transaction transaction(to);
    for (const Table& table : kTables) CopyTable(from, to, table);
    // A damaged number may name a study or a trial that is not there: nobody would see such rows.
    to.Run("DELETE FROM trials WHERE study NOT IN (SELECT id FROM studies)");
    for (const char* table : {"reports", "events", "attributes"})
      to.Run(fmt::format("DELETE FROM {} WHERE trial <> -1 AND (study, trial) NOT IN (SELECT "
                         "study, number FROM trials) OR study NOT IN (SELECT id FROM studies)",
                         table)
                 .c_str());
    salvaged.studies = to.Number("SELECT count(*) FROM studies");
    salvaged.trials = to.Number("SELECT count(*) FROM trials");
    salvaged.reports = to.Number("SELECT count(*) FROM reports");
    transaction.Commit();
  }
  if (salvaged.studies == 0) {
    std::filesystem::remove(draft);
    throw Error(Code::kFailedPrecondition,
                fmt::format("nothing can be read from {}", file.string()));
  }
  int number = 1;
  const auto kept = [&] { return WithSuffix(file, fmt::format(".damaged-{}", number)); };
  while (std::filesystem::exists(kept())) ++number;
  salvaged.kept = kept();
  // The old file has its new name before the new one has the old name; a log that is not read yet
  // goes with the old one, or SQLite would write it into the new one.
  std::filesystem::create_hard_link(file, salvaged.kept);
  if (std::filesystem::exists(WithSuffix(file, "-wal")))
    std::filesystem::rename(WithSuffix(file, "-wal"), WithSuffix(salvaged.kept, "-wal"));
  std::filesystem::remove(WithSuffix(file, "-shm"));
  std::filesystem::rename(draft, file);
  return salvaged;
}

}  // namespace orca::tune
