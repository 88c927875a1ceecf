// SQLite with owners and errors of ours.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace orca::tune {

/// A connection. One thread. No views are read and no triggers fire: nothing in a file is run.
class Database {
 public:
  enum class Access { kRead, kWrite };

  Database(const Database&) = delete;  // SQLite knows its place.
  Database& operator=(const Database&) = delete;
  /// With kWrite the file is made when it is missing. With kRead a statement ends with an error
  /// when it takes longer than the file is long: its author may have made rows without an end.
  Database(const std::filesystem::path& file, Access access);

  /// Runs statements that give no rows.
  void Run(const char* sql);
  /// The first column of the first row; 0 when there is none.
  std::int64_t Number(const char* sql);
  std::string Text(const char* sql);
  /// Rows that the last statement changed.
  std::int64_t changes() const { return sqlite3_changes64(handle_.get()); }
  bool in_transaction() const { return sqlite3_get_autocommit(handle_.get()) == 0; }
  const std::filesystem::path& file() const { return file_; }

  [[noreturn]] void Fail(int result) const;

 private:
  friend class Statement;
  struct Closer {
    void operator()(sqlite3* handle) const { sqlite3_close_v2(handle); }
  };

  std::filesystem::path file_;
  std::int64_t most_turns_ = 0;     // of one statement that reads
  mutable std::int64_t turns_ = 0;  // of the statement that runs
  std::unique_ptr<sqlite3, Closer> handle_;
};

/// A prepared statement of a Database that outlives it.
class Statement {
 public:
  Statement(const Database& database, const char* sql);

  template <typename... Values>
  Statement& Bind(const Values&... values) {
    Reset();
    int at = 0;
    (BindOne(++at, values), ...);
    return *this;
  }
  /// The values of the row that `row` is at.
  Statement& BindRow(const Statement& row);
  /// Whether there is a row.
  bool Step();
  /// Runs it to its end.
  void Run() {
    while (Step()) {
    }
    Reset();
  }
  void Reset() {
    sqlite3_reset(handle_.get());
    database_->turns_ = 0;
  }

  int columns() const { return sqlite3_column_count(handle_.get()); }
  std::int64_t Int(int column) const { return sqlite3_column_int64(handle_.get(), column); }
  /// NULL is NaN, as SQLite stores it.
  double Double(int column) const;
  std::string Text(int column) const;

 private:
  void BindOne(int at, std::int64_t value);
  void BindOne(int at, double value);
  void BindOne(int at, std::string_view value);
  void Check(int result) const;

  struct Finalizer {
    void operator()(sqlite3_stmt* handle) const { sqlite3_finalize(handle); }
  };
  const Database* database_;
  std::unique_ptr<sqlite3_stmt, Finalizer> handle_;
};

/// All or nothing: undone unless Commit() was called.
class Transaction {
 public:
  explicit Transaction(Database& database);
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  ~Transaction();
  void Commit();

 private:
  Database& database_;
};

}  // namespace orca::tune
