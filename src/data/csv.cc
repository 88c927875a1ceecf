#include "orca/data/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "data/csv_column.h"
#include "data/csv_kernels.h"
#include "orca/core/error.h"

namespace orca::data {
namespace {

constexpr std::size_t kBlock = 64;
constexpr std::size_t kSlice = 32 << 10;  // Text and ends stay in the nearest caches.

[[noreturn]] void Refuse(const std::string& reason) { throw Error(Code::kUnavailable, reason); }

/// The columns, from the first byte of the text to the last one.
class Table final : public CsvTable {
 public:
  Table(std::string_view text, const CsvDialect& dialect, std::span<const CsvColumn> columns,
        const std::shared_ptr<CsvPieces>& pieces)
      : text_(text), wording_(dialect), fields_(columns.size()) {
    for (std::size_t i = 0; i < columns.size(); ++i)
      if (columns[i].kind != CsvKind::kSkipped)
        values_.emplace_back(wording_, columns[i], i, pieces);
    for (CsvValues& values : values_) active_.push_back(&values);
    do {
      Read();
      std::erase_if(active_, [](const CsvValues* values) { return !values->is_behind(); });
      for (CsvValues* values : active_) values->Restart();
    } while (!active_.empty());
    if (rows_ == 0) Refuse("there are no records");
    for (CsvValues& values : values_) Keep(values);
    ends_ = {};
  }

  std::uint64_t rows() const override { return rows_; }
  const std::vector<ColumnSpec>& specs() const override { return specs_; }
  const std::vector<Column>& columns() const override { return columns_; }
  const std::vector<CsvKind>& kinds() const override { return kinds_; }
  const std::vector<std::uint64_t>& missing() const override { return missing_; }

 private:
  void Keep(CsvValues& values) {
    values.Finish();
    specs_.push_back(values.spec());
    columns_.push_back(values.column());
    kinds_.push_back(values.kind());
    missing_.push_back(values.missing());
  }

  void Read() {
    scan_ = {
        .separator = wording_.separator, .quote = wording_.quote, .has_quote = wording_.has_quote};
    rows_ = count_ = at_ = 0;
    ends_.resize(1);
    ends_[0] = std::numeric_limits<std::uint32_t>::max();
    while (at_ < text_.size()) {
      FindEnds();
      if (scan_.is_odd) Refuse("there are quotes within a field, or a carriage return in a line");
      if (at_ == text_.size() && Close()) return;
      const std::size_t used = Take(text_.data(), ends_.data());
      std::copy(ends_.begin() + used, ends_.begin() + count_ + 1, ends_.begin());
      count_ -= used;
    }
  }

  // Finds where the fields of the next slice end.
  void FindEnds() {
    const CsvScanFunction scan = FindCsvKernels().scan;
    ends_.resize(std::max(ends_.size(), 1 + count_ + kSlice + 2 * kBlock));
    std::uint32_t* const begin = ends_.data() + 1 + count_;
    const std::size_t left = text_.size() - at_;
    // Readers may read behind what was looked at.
    const std::size_t blocks = std::min(kSlice, left - std::min(left, kCsvSlack)) / kBlock;
    const auto base = static_cast<std::uint32_t>(at_);
    newlines_ = scan_.newlines;
    std::uint32_t* end = begin;
    if (blocks > 0) {
      end = scan(text_.data() + at_, blocks, base, scan_, begin);
      at_ += blocks * kBlock;
    } else {
      char last[2 * kBlock] = {};
      static_assert(kCsvSlack < kBlock);
      std::memcpy(last, text_.data() + at_, left);
      end = scan(last, 2, base, scan_, begin);
      at_ = text_.size();
    }
    newlines_ = scan_.newlines - newlines_;
    count_ += static_cast<std::size_t>(end - begin);
  }

  // Takes the last records from a copy, behind which readers may read.
  bool Close() {
    if (scan_.inside != 0) Refuse("quotes are open at the end");
    if (scan_.after_return != 0) Refuse("there is a carriage return at the end");
    const auto size = static_cast<std::uint32_t>(text_.size());
    if (text_.back() != '\n') {
      ends_.resize(std::max(ends_.size(), count_ + 2));
      ends_[++count_] = size;
      ++newlines_;
    }
    const std::uint32_t begin = ends_[0] + 1;
    std::string copy(text_.substr(begin));
    copy += '\n';
    copy.append(kCsvSlack, '\0');
    for (std::size_t i = 0; i <= count_; ++i) ends_[i] -= begin;
    if (Take(copy.data(), ends_.data()) != count_) Refuse("a record has too few fields");
    return true;
  }

  // Hands all whole records to the columns. Returns how many ends they have.
  std::size_t Take(const char* text, const std::uint32_t* ends) {
    const std::size_t rows = count_ / fields_;
    if (fields_ > 1 && newlines_ == rows && AreWhole(text, ends, rows)) {
      Add(text, ends, rows);
      return rows * fields_;
    }
    std::size_t used = 0;
    std::size_t run = 0;
    while (used + run * fields_ < count_) {
      const std::uint32_t* const next = ends + used + run * fields_;
      const std::size_t left = count_ - (used + run * fields_);
      if (IsEmptyLine(text, next)) {
        Add(text, ends + used, run);
        used += run * fields_ + 1;
        run = 0;
        continue;
      }
      const std::size_t fields = FieldsOf(text, next, left);
      if (fields == 0) break;
      if (fields != fields_) {
        Refuse(
            fmt::format("record {} has {} fields, and not {}", rows_ + run + 1, fields, fields_));
      }
      ++run;
    }
    Add(text, ends + used, run);
    return used + run * fields_;
  }

  bool AreWhole(const char* text, const std::uint32_t* ends, std::size_t rows) const {
    for (std::size_t i = 1; i <= rows; ++i)
      if (text[ends[i * fields_]] != '\n') return false;
    return true;
  }

  static bool IsEmptyLine(const char* text, const std::uint32_t* ends) {
    const std::uint32_t begin = ends[0] + 1;
    const std::uint32_t size = ends[1] - begin;
    return text[ends[1]] == '\n' && (size == 0 || (size == 1 && text[begin] == '\r'));
  }

  // 0: its last one is not among those that are left.
  static std::size_t FieldsOf(const char* text, const std::uint32_t* ends, std::size_t left) {
    for (std::size_t i = 1; i <= left; ++i)
      if (text[ends[i]] == '\n') return i;
    return 0;
  }

  void Add(const char* text, const std::uint32_t* ends, std::size_t rows) {
    if (rows == 0) return;
    rows_ += rows;
    // A little more than this much text tells; columns grow when that is wrong.
    const std::size_t times = text_.size() / at_ + 1;
    const std::size_t expected = rows_ * times + rows_ * times / 16;
    const CsvRecords records{text, ends, rows, fields_, scan_.has_returns, scan_.has_pairs};
    for (CsvValues* values : active_) values->Add(records, expected);
  }

  std::string_view text_;
  CsvWording wording_;
  std::size_t fields_;
  std::vector<CsvValues> values_;
  std::vector<CsvValues*> active_;  // those that read
  CsvScan scan_;
  std::vector<std::uint32_t> ends_;  // the one before the first field, and those of `count_` fields
  std::size_t count_ = 0;
  std::uint64_t newlines_ = 0;  // among them
  std::size_t at_ = 0;          // how much of the text was looked at
  std::uint64_t rows_ = 0;
  std::vector<ColumnSpec> specs_;
  std::vector<Column> columns_;
  std::vector<CsvKind> kinds_;
  std::vector<std::uint64_t> missing_;
};

}  // namespace

std::shared_ptr<const CsvTable> ParseCsv(std::span<const std::byte> text, const CsvDialect& dialect,
                                         std::span<const CsvColumn> columns,
                                         const std::shared_ptr<CsvMemory>& memory) {
  if (columns.empty())
    throw Error(Code::kInvalidArgument, "there are no columns; name those of the text");
  for (const CsvColumn& column : columns) {
    if (column.kind == CsvKind::kMissing)
      throw Error(
          Code::kInvalidArgument,
          fmt::format("column '{}' cannot be wanted without values; let its kind be inferred",
                      column.name));
  }
  if (text.size() >= std::numeric_limits<std::int32_t>::max())
    Refuse(fmt::format("{} bytes are too many; give less than 2 GiB", text.size()));
  return std::make_shared<const Table>(
      std::string_view(reinterpret_cast<const char*>(text.data()), text.size()), dialect, columns,
      std::static_pointer_cast<CsvPieces>(memory));
}

}  // namespace orca::data
