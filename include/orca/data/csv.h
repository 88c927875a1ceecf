// Text of CSV as columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "orca/core/export.h"
#include "orca/data/arrow.h"
#include "orca/data/shard.h"

namespace orca::data {

/// How fields are written, and what they mean.
struct CsvDialect {
  char separator = ',';
  char quote = '"';       ///< Around fields that hold separators, newlines or quotes (as two).
  bool has_quote = true;  ///< Without, `quote` is a character as others are.
  std::vector<std::string> missing = {""};  ///< What stands for a missing value, in quotes or not.
  std::vector<std::string> yes = {"True", "TRUE", "true"};
  std::vector<std::string> no = {"False", "FALSE", "false"};
};

/// What the values of a column are.
enum class CsvKind : std::uint8_t {
  kInferred = 0,  ///< Wanted: the first of the kinds below that all values fit.
  kSkipped = 1,   ///< Wanted: nothing.
  kMissing = 2,   ///< Found: there is no value, and NaN in all rows.
  kInt64 = 3,
  kFloat64 = 4,
  kBool = 5,
  kString = 6,
  kUInt64 = 7,  ///< Whole numbers from 0 on, some of 2^63 and more; their bits are int64s.
};

/// A column of the text.
struct CsvColumn {
  std::string name;
  CsvKind kind = CsvKind::kInferred;
};

/// The columns of a text, those that were skipped excepted. Any thread may read it.
class ORCA_API CsvTable {
 public:
  virtual ~CsvTable() = default;
  virtual std::uint64_t rows() const = 0;
  /// What the columns hold, as a shard has it: `Shard::Put` takes them as they are.
  virtual const std::vector<ColumnSpec>& specs() const = 0;
  virtual const std::vector<Column>& columns() const = 0;
  /// What the values were found to be. Whole numbers of which some are missing are kInt64, in a
  /// column of float64.
  virtual const std::vector<CsvKind>& kinds() const = 0;
  /// How many values each column misses: NaN among numbers, without a validity bit among strings.
  virtual const std::vector<std::uint64_t>& missing() const = 0;
};

/// Memory of tables that are gone, for the next ones: fresh pages cost as much as the reading. Any
/// thread may use it. Tables keep it; what it keeps goes with it.
class ORCA_API CsvMemory {
 public:
  static std::shared_ptr<CsvMemory> Create();
  virtual ~CsvMemory() = default;
};

/// Reads whole records, each with a field for every one of `columns`. Lines end in \n or \r\n,
/// empty ones are no records. Numbers are decimal; each is the nearest float64.
///
/// It reads what is plain, and reads that fast. Throws kUnavailable, naming the reason, where a
/// slower reader may know more: records with other numbers of fields, quotes within fields, a
/// carriage return alone, texts that may be dates, booleans of which some are missing, whole
/// numbers beyond 2^53 of which some are missing, whole numbers that no type of 64 bits has
/// together, bytes that are not UTF-8, values that do not fit the kind that is wanted, no records,
/// 2 GiB and more. Throws kInvalidArgument for a dialect that
/// contradicts itself.
ORCA_API std::shared_ptr<const CsvTable> ParseCsv(
    std::span<const std::byte> text, const CsvDialect& dialect, std::span<const CsvColumn> columns,
    const std::shared_ptr<CsvMemory>& memory = CsvMemory::Create());

/// As a record batch over the table's own memory, as `ExportArrow` of a shard.
ORCA_API void ExportArrow(const std::shared_ptr<const CsvTable>& table, ArrowSchema* schema,
                          ArrowArray* array);

}  // namespace orca::data
