#include "tune/sqlite.h"

#include <fmt/format.h>

#include <chrono>
#include <limits>

#include "orca/core/error.h"
#include "orca/core/log.h"

namespace orca::tune {
namespace {

// A reader waits for nothing in WAL mode, a writer for a checkpoint at most.
constexpr std::chrono::milliseconds kPatience(10'000);
// A row takes about ten of SQLite's instructions, and at least as many bytes.
constexpr int kTurn = 1'000'000;  // instructions between two looks at how many there were
constexpr std::uintmax_t kFreeTurns = 20;
constexpr std::uintmax_t kInstructionsPerByte = 4;

std::uintmax_t SizeOf(const std::filesystem::path& file) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  return error ? 0 : size;
}

Code CodeOf(int result) {
  switch (result & 0xFF) {
    case SQLITE_FULL:
    case SQLITE_NOMEM:
      return Code::kResourceExhausted;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return Code::kTimeout;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_INTERRUPT:
    case SQLITE_CONSTRAINT:
      return Code::kFailedPrecondition;
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
      return Code::kUnavailable;
    default:
      return Code::kInternal;
  }
}

const char* RemedyOf(int result) {
  switch (result & 0xFF) {
    case SQLITE_FULL:
      return "; the disk is full: make room and resume";
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return "; the file is damaged: \"orca tune salvage FILE\" keeps what can be read";
    case SQLITE_INTERRUPT:
      return "; its rows do not end: the file is damaged, or was made to look like one of studies";
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_READONLY:
      return "; see that the folder is there and may be written";
    default:
      return "";
  }
}

}  // namespace

Database::Database(const std::filesystem::path& file, Access access) : file_(file) {
  const int flags =
      access == Access::kRead ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  sqlite3* handle = nullptr;
  const int result = sqlite3_open_v2(file.c_str(), &handle, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  handle_.reset(handle);
  if (result != SQLITE_OK) Fail(result);
  sqlite3_extended_result_codes(handle, 1);
  sqlite3_busy_timeout(handle, static_cast<int>(kPatience.count()));
  for (const int part : {SQLITE_DBCONFIG_ENABLE_VIEW, SQLITE_DBCONFIG_ENABLE_TRIGGER,
                         SQLITE_DBCONFIG_TRUSTED_SCHEMA})
    sqlite3_db_config(handle, part, 0, nullptr);
  if (access != Access::kRead) return;
  const std::uintmax_t bytes = SizeOf(file) + SizeOf(file.string() + "-wal");
  most_turns_ = static_cast<std::int64_t>(kFreeTurns + kInstructionsPerByte * bytes / kTurn);
  const auto is_enough = [](void* database) {
    const auto* self = static_cast<const Database*>(database);
    return ++self->turns_ > self->most_turns_ ? 1 : 0;
  };
  sqlite3_progress_handler(handle, kTurn, is_enough, this);
}

void Database::Fail(int result) const {
  const char* text = handle_ ? sqlite3_errmsg(handle_.get()) : sqlite3_errstr(result);
  throw Error(CodeOf(result), fmt::format("{}: {}{}", file_.string(), text, RemedyOf(result)));
}

void Database::Run(const char* sql) {
  const int result = sqlite3_exec(handle_.get(), sql, nullptr, nullptr, nullptr);
  if (result != SQLITE_OK) Fail(result);
}

std::int64_t Database::Number(const char* sql) {
  Statement statement(*this, sql);
  return statement.Step() ? statement.Int(0) : 0;
}

std::string Database::Text(const char* sql) {
  Statement statement(*this, sql);
  return statement.Step() ? statement.Text(0) : "";
}

Statement::Statement(const Database& database, const char* sql) : database_(&database) {
  database.turns_ = 0;
  sqlite3_stmt* handle = nullptr;
  const int result = sqlite3_prepare_v2(database.handle_.get(), sql, -1, &handle, nullptr);
  handle_.reset(handle);
  Check(result);
}

void Statement::Check(int result) const {
  if (result != SQLITE_OK) database_->Fail(result);
}

Statement& Statement::BindRow(const Statement& row) {
  Reset();
  for (int i = 0; i < row.columns(); ++i)
    Check(sqlite3_bind_value(handle_.get(), i + 1, sqlite3_column_value(row.handle_.get(), i)));
  return *this;
}

bool Statement::Step() {
  const int result = sqlite3_step(handle_.get());
  if (result == SQLITE_ROW) return true;
  if (result == SQLITE_DONE) return false;
  Reset();
  database_->Fail(result);
}

double Statement::Double(int column) const {
  if (sqlite3_column_type(handle_.get(), column) == SQLITE_NULL)
    return std::numeric_limits<double>::quiet_NaN();
  return sqlite3_column_double(handle_.get(), column);
}

std::string Statement::Text(int column) const {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(handle_.get(), column));
  if (text == nullptr) return "";
  return {text, static_cast<std::size_t>(sqlite3_column_bytes(handle_.get(), column))};
}

void Statement::BindOne(int at, std::int64_t value) {
  Check(sqlite3_bind_int64(handle_.get(), at, value));
}
void Statement::BindOne(int at, double value) {
  Check(sqlite3_bind_double(handle_.get(), at, value));
}
void Statement::BindOne(int at, std::string_view value) {
  Check(sqlite3_bind_text64(handle_.get(), at, value.data() == nullptr ? "" : value.data(),
                            value.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
}

Transaction::Transaction(Database& database) : database_(database) {
  database_.Run("BEGIN IMMEDIATE");
}

Transaction::~Transaction() {
  if (!database_.in_transaction()) return;
  try {
    database_.Run("ROLLBACK");
  } catch (const Error& error) {
    Log(LogLevel::kWarning, error.what());
  }
}

void Transaction::Commit() { database_.Run("COMMIT"); }

}  // namespace orca::tune
