// Takes any bytes for records of CSV: first the number of columns and what they are, then the text.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "input.h"
#include "orca/core/error.h"
#include "orca/data/csv.h"

namespace orca::data {
namespace {

void RequireSound(const CsvTable& table) {
  for (std::size_t c = 0; c < table.columns().size(); ++c) {
    const ColumnSpec& spec = table.specs()[c];
    const Column& column = table.columns()[c];
    Require(table.missing()[c] <= table.rows());
    if (spec.kind == ColumnKind::kFixed) {
      Require(column.values.size() == table.rows() * spec.row_bytes());
      continue;
    }
    Require(column.offsets.size() == table.rows() + 1 && column.offsets[0] == 0);
    std::uint64_t missing = 0;
    for (std::uint64_t row = 0; row < table.rows(); ++row) {
      if (column.IsMissing(row)) ++missing;
      (void)column.Bytes(row);  // Throws when it lies outside.
    }
    Require(missing == table.missing()[c]);
    Require(static_cast<std::size_t>(column.offsets.back()) == column.values.size());
  }
}

}  // namespace
}  // namespace orca::data

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using orca::data::CsvKind;
  orca::FuzzInput input(data, size);
  std::vector<orca::data::CsvColumn> columns(1 + input.TakeByte() % 4);
  for (auto& column : columns) {
    column = {"c", static_cast<CsvKind>(input.TakeByte() % 8)};
    if (column.kind == CsvKind::kMissing) column.kind = CsvKind::kInferred;
  }
  orca::data::CsvDialect dialect{.has_quote = input.TakeByte() % 4 != 0, .missing = {"", "NA"}};
  try {
    orca::data::RequireSound(*orca::data::ParseCsv(input.TakeRest(), dialect, columns));
  } catch (const orca::Error& error) {
    orca::Require(error.code() == orca::Code::kUnavailable);
  }
  return 0;
}
