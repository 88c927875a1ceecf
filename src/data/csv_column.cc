#include "data/csv_column.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <utility>

#include "data/csv_kernels.h"
#include "orca/core/error.h"
#include "orca/core/host.h"

namespace orca::data {
namespace {

constexpr std::size_t kPatience = 4096;  // Rows that may be dates, before they are taken for such.
constexpr std::size_t kShort = 16;       // Bytes that are copied at once.

constexpr std::int64_t kNaN = std::bit_cast<std::int64_t>(std::numeric_limits<double>::quiet_NaN());

bool IsBlank(char byte) { return byte == ' ' || byte == '\t'; }

bool IsUtf8(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (std::size_t i = 0; i < text.size();) {
    const unsigned first = at(i);
    const std::size_t more = first < 0x80 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    if ((first >= 0x80 && first < 0xC2) || first > 0xF4 || text.size() - i <= more) return false;
    for (std::size_t k = 1; k <= more; ++k)
      if ((at(i + k) & 0xC0) != 0x80) return false;
    // No form that is too long, no half of a pair of UTF-16, nothing beyond the last character.
    if ((first == 0xE0 && at(i + 1) < 0xA0) || (first == 0xED && at(i + 1) > 0x9F) ||
        (first == 0xF0 && at(i + 1) < 0x90) || (first == 0xF4 && at(i + 1) > 0x8F)) {
      return false;
    }
    i += more + 1;
  }
  return true;
}

bool StartsLike(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() && std::equal(lower.begin(), lower.end(), text.begin(),
                                                   [](char a, char b) { return a == (b | 0x20); });
}

void CheckWords(const CsvDialect& dialect) {
  for (const auto* words : {&dialect.missing, &dialect.yes, &dialect.no}) {
    for (const std::string& word : *words) {
      const std::string padded = word + std::string(kCsvSlack, '\0');
      double number = 0;
      if (ParseCsvFloat(padded.data(), word.size(), number) || word.size() >= 32 ||
          (dialect.has_quote && word.find(dialect.quote) != word.npos)) {
        throw Error(Code::kInvalidArgument,
                    fmt::format("'{}' is a number, has quotes or 32 bytes; it cannot stand for a "
                                "missing value, true or false",
                                word));
      }
    }
  }
  const auto is_break = [](char byte) { return byte == '\n' || byte == '\r' || byte == '\0'; };
  if (is_break(dialect.separator) ||
      (dialect.has_quote && (is_break(dialect.quote) || dialect.quote == dialect.separator))) {
    throw Error(Code::kInvalidArgument,
                fmt::format("separator {:#x} and quote {:#x} must differ, and be no end of a line",
                            static_cast<unsigned char>(dialect.separator),
                            static_cast<unsigned char>(dialect.quote)));
  }
}

}  // namespace

void RefuseCsv(const std::string& name, const std::string& reason) {
  throw Error(Code::kUnavailable, fmt::format("column '{}': {}", name, reason));
}

CsvPieces::CsvPieces() : forks_(ForkCount()) {}

CsvPieces::Piece CsvPieces::Take(std::size_t size) {
  // In a child the lock may be one that a thread of the parent held, and nobody opens it again.
  if (ForkCount() == forks_) {
    const std::lock_guard lock(mutex_);
    for (auto free = free_.rbegin(); free != free_.rend(); ++free) {
      if (free->size < size || free->size / 2 > size) continue;
      Piece found = std::exchange(*free, std::move(free_.back()));
      free_.pop_back();
      return found;
    }
  }
  size += size / 8;  // The next text may have a few rows more.
  return {std::make_unique_for_overwrite<std::byte[]>(size), size};
}

void CsvPieces::Give(Piece piece) noexcept {
  if (ForkCount() != forks_) return;
  try {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(piece));
  } catch (const std::exception&) {  // Then it is freed.
  }
}

std::shared_ptr<CsvMemory> CsvMemory::Create() { return std::make_shared<CsvPieces>(); }

CsvWords::CsvWords(std::vector<std::string> words) : words_(std::move(words)) {
  for (const std::string& word : words_) {
    if (word.empty()) {
      has_empty_ = true;
    } else {
      sizes_[static_cast<unsigned char>(word[0])] |= std::uint32_t{1} << word.size();
    }
  }
}

bool CsvWords::IsAmong(std::string_view text) const {
  return std::find(words_.begin(), words_.end(), text) != words_.end();
}

CsvWording::CsvWording(const CsvDialect& dialect)
    : separator(dialect.separator),
      quote(dialect.quote),
      has_quote(dialect.has_quote),
      missing(dialect.missing),
      yes(dialect.yes),
      no(dialect.no) {
  CheckWords(dialect);
}

bool CsvWording::IsText(std::string_view field) const {
  while (!field.empty() && IsBlank(field.front())) field.remove_prefix(1);
  while (!field.empty() && IsBlank(field.back())) field.remove_suffix(1);
  if (field.empty()) return false;
  const auto first = static_cast<unsigned char>(field.front());
  if (first < '0' ? first != '+' && first != '-' && first != '.' : first > '9') {
    return !StartsLike(field, "inf") && !StartsLike(field, "nan") &&
           !yes.Has(field.data(), field.size()) && !no.Has(field.data(), field.size());
  }
  // What numbers, also hexadecimal and infinite ones, dates, times and zones are written with.
  constexpr std::string_view kUsed = "0123456789+-.:/, \tTZtzABCDEFabcdefxXINFYinfy()";
  return field.find_first_not_of(kUsed) != field.npos;
}

CsvValues::CsvValues(const CsvWording& wording, const CsvColumn& wanted, std::size_t field,
                     const std::shared_ptr<CsvPieces>& pieces)
    : wording_(wording),
      name_(wanted.name),
      field_(field),
      is_given_(wanted.kind != CsvKind::kInferred),
      numbers_(pieces),
      bytes_(pieces) {
  if (is_given_) Begin(wanted.kind);
}

void CsvValues::Restart() {
  kind_ = CsvKind::kMissing;
  rows_ = 0;
  missing_ = 0;
  gaps_.clear();
  has_minus_zero_ = false;
  Begin(std::exchange(behind_, CsvKind::kSkipped));
}

// All rows before are missing.
void CsvValues::Begin(CsvKind kind) {
  kind_ = kind;
  numbers_.Reserve(rows_ + 1, 0);
  if (kind == CsvKind::kInt64) {
    std::fill_n(numbers_.data(), rows_, 0);
    gaps_.resize(rows_);
    std::iota(gaps_.begin(), gaps_.end(), 0);
  } else if (kind == CsvKind::kString) {
    std::fill_n(numbers_.data(), rows_ + 1, 0);
    validity_.assign((rows_ + 7) / 8, std::byte{0});
    if (rows_ % 8 != 0) validity_.back() = std::byte{0xFF} << (rows_ % 8);
  } else {
    std::fill_n(numbers_.data(), rows_, kNaN);
  }
  if (kind == CsvKind::kBool && rows_ > 0) RefuseCsv(name_, "a boolean is missing");
}

void CsvValues::ToFloat() {
  for (std::size_t i = 0; i < rows_; ++i) {
    std::int64_t& number = numbers_.data()[i];
    const double value = kind_ == CsvKind::kUInt64
                             ? static_cast<double>(static_cast<std::uint64_t>(number))
                             : static_cast<double>(number);
    number = std::bit_cast<std::int64_t>(value);
  }
  for (const std::size_t row : gaps_) numbers_.data()[row] = kNaN;
  gaps_.clear();
  kind_ = CsvKind::kFloat64;
}

void CsvValues::Add(const CsvRecords& records, std::size_t expected) {
  const std::size_t wanted = rows_ + records.rows + 1;
  if (wanted > numbers_.capacity())
    numbers_.Reserve(std::max({wanted, expected, wanted + wanted / 2}), rows_ + 1);
  std::size_t row = 0;
  while (row < records.rows && !is_behind()) {
    switch (kind_) {
      case CsvKind::kInt64:
      case CsvKind::kUInt64:
      case CsvKind::kFloat64:
        row = AddNumbers(records, row);
        break;
      case CsvKind::kBool:
        row = AddBools(records, row);
        break;
      case CsvKind::kString:
        row = AddStrings(records, row);
        break;
      default:
        row = AddUndecided(records, row);
    }
  }
}

void CsvValues::RefuseQuotes() const { RefuseCsv(name_, "a field goes on behind its quotes"); }

template <bool kHasReturn>
[[gnu::always_inline]] inline CsvValues::Field CsvValues::Get(const CsvRecords& records,
                                                              std::size_t row) const {
  const std::uint32_t* const ends = records.ends + row * records.fields + field_;
  const std::uint32_t begin = ends[0] + 1;  // The one before the first is 2^32 - 1.
  Field field{records.text + begin, ends[1] - begin};
  if (kHasReturn && field.size > 0 && field.text[field.size - 1] == '\r') --field.size;
  if (*field.text == wording_.quote && wording_.has_quote) {
    if (field.size < 2 || field.text[field.size - 1] != wording_.quote) RefuseQuotes();
    ++field.text;
    field.size -= 2;
  }
  return field;
}

// Calls step(row, field) from `row` to before `end`; returns the row for which it was false.
template <typename Step>
std::size_t CsvValues::Each(const CsvRecords& records, std::size_t row, std::size_t end,
                            Step step) const {
  if (records.has_returns && field_ + 1 == records.fields) {
    while (row < end && step(row, Get<true>(records, row))) ++row;
  } else {
    while (row < end && step(row, Get<false>(records, row))) ++row;
  }
  return row;
}

std::size_t CsvValues::AddUndecided(const CsvRecords& records, std::size_t row) {
  Field found{};
  const std::size_t end = Each(records, row, records.rows, [&](std::size_t, Field field) {
    found = field;
    return IsMissing(field);
  });
  rows_ += end - row;
  missing_ += end - row;
  if (end == records.rows) return end;
  std::int64_t whole = 0;
  double number = 0;
  if (ParseCsvInt(found.text, found.size, whole)) {
    Begin(CsvKind::kInt64);
  } else if (IsCsvWhole(found.text, found.size)) {
    ToUnsigned(found);
  } else if (ParseCsvFloat(found.text, found.size, number)) {
    Begin(CsvKind::kFloat64);
  } else if (wording_.yes.Has(found.text, found.size) || wording_.no.Has(found.text, found.size)) {
    Begin(CsvKind::kBool);
  } else {
    Begin(CsvKind::kString);
  }
  numbers_.Reserve(rows_ + records.rows - end + 1, rows_ + 1);
  return end;
}

// `field` is not of the kind that the values before it are.
void CsvValues::Loosen(Field field) {
  if (is_given_) RefuseCsv(name_, "a value does not fit the type that is wanted");
  const bool is_whole = kind_ == CsvKind::kInt64 || kind_ == CsvKind::kUInt64;
  double number = 0;
  if (is_whole && IsCsvWhole(field.text, field.size)) {
    ToUnsigned(field);
  } else if (kind_ == CsvKind::kUInt64 && IsMissing(field)) {
    RefuseCsv(name_, "a number is missing, and another one is beyond an int64");
  } else if (!is_whole || !ParseCsvFloat(field.text, field.size, number)) {
    behind_ = CsvKind::kString;
    is_text_ = wording_.IsText({field.text, field.size});
  } else if (has_minus_zero_) {
    behind_ = CsvKind::kFloat64;
  } else {
    ToFloat();
  }
}

// `field` is a whole number that an int64 does not have, or has as the only one of the column.
void CsvValues::ToUnsigned(Field field) {
  std::uint64_t number = 0;
  const bool has_negative =
      has_minus_zero_ ||
      (kind_ == CsvKind::kInt64 && std::any_of(numbers_.data(), numbers_.data() + rows_,
                                               [](std::int64_t before) { return before < 0; }));
  if (missing_ > 0 || has_negative || !ParseCsvUInt(field.text, field.size, number))
    RefuseCsv(name_, "its whole numbers do not fit into one type of 64 bits");
  kind_ = CsvKind::kUInt64;  // Those before have the same bits.
}

// One that is missing, long or written in another way.
bool CsvValues::AddNumber(Field field, std::size_t row) {
  std::int64_t& out = numbers_.data()[row];
  double number = 0;
  if (kind_ == CsvKind::kInt64 && ParseCsvInt(field.text, field.size, out)) {
    if (out == 0 && *field.text == '-') has_minus_zero_ = true;
    return true;
  }
  if (kind_ == CsvKind::kFloat64 && ParseCsvFloat(field.text, field.size, number)) {
    out = std::bit_cast<std::int64_t>(number);
    return true;
  }
  if (kind_ == CsvKind::kUInt64) {
    std::uint64_t whole = 0;
    const bool fits = ParseCsvUInt(field.text, field.size, whole);
    out = static_cast<std::int64_t>(whole);
    return fits;
  }
  if (!IsMissing(field)) return false;
  ++missing_;
  out = kNaN;
  if (kind_ == CsvKind::kInt64) {
    out = 0;
    gaps_.push_back(row);
  }
  return true;
}

std::size_t CsvValues::AddNumbers(const CsvRecords& records, std::size_t row) {
  if (kind_ == CsvKind::kUInt64) {  // Mostly too long for kernels.
    Field wrong{};
    const std::size_t done = Each(records, row, records.rows, [&](std::size_t r, Field field) {
      wrong = field;
      return AddNumber(field, rows_ + r - row);
    });
    rows_ += done - row;
    if (done < records.rows) Loosen(wrong);
    return done;
  }
  const CsvKernels& kernels = FindCsvKernels();
  const CsvNumbersFunction convert = kind_ == CsvKind::kInt64 ? kernels.ints : kernels.floats;
  CsvDigits digits;
  const std::size_t end = std::min(records.rows, row + CsvDigits::kMost);
  Each(records, row, end, [&](std::size_t r, Field field) {
    const std::size_t sign = *field.text == '-' ? 1 : 0;
    digits.words[r - row] = csv::Load(field.text + sign);
    digits.sizes[r - row] = field.size - sign;
    digits.negatives[r - row] = sign;
    return true;
  });
  if (convert(digits, end - row, numbers_.data() + rows_)) {
    rows_ += end - row;
    return end;
  }
  Field wrong{};
  const std::size_t done = Each(records, row, end, [&](std::size_t r, Field field) {
    wrong = field;
    return digits.left[r - row] == 0 || AddNumber(field, rows_ + r - row);
  });
  rows_ += done - row;
  if (done < end) Loosen(wrong);
  return done;
}

std::size_t CsvValues::AddBools(const CsvRecords& records, std::size_t row) {
  bytes_.Reserve(std::max(rows_ + records.rows - row, numbers_.capacity()), rows_);
  char* const out = bytes_.data() + rows_ - row;
  Field wrong{};
  const std::size_t end = Each(records, row, records.rows, [&](std::size_t r, Field field) {
    const bool is_true = wording_.yes.Has(field.text, field.size);
    out[r] = is_true ? 1 : 0;
    if (is_true || wording_.no.Has(field.text, field.size)) return true;
    if (IsMissing(field)) RefuseCsv(name_, "a boolean is missing");
    wrong = field;
    return false;
  });
  rows_ += end - row;
  if (end < records.rows) Loosen(wrong);
  return end;
}

void CsvValues::SetMissingString(std::size_t row) {
  if (missing_++ == 0) validity_.assign((row + 7) / 8, std::byte{0xFF});
  validity_.resize(row / 8 + 1, std::byte{0xFF});
  validity_[row / 8] &= ~(std::byte{1} << (row % 8));
}

std::size_t CsvValues::AddStrings(const CsvRecords& records, std::size_t row) {
  std::int64_t* const offsets = numbers_.data() + rows_ - row;
  auto at = static_cast<std::size_t>(offsets[row]);
  const std::uint32_t* const ends = records.ends;
  const std::size_t most = ends[records.rows * records.fields] - ends[row * records.fields];
  if (at + most + kShort > bytes_.capacity()) {
    const std::size_t each = rows_ > 0 ? at / rows_ + 1 : 0;
    bytes_.Reserve(at + most + kShort + std::max(each * numbers_.capacity(), at / 2), at);
  }
  char* const bytes = bytes_.data();
  const std::size_t first = rows_;
  const std::size_t end = Each(records, row, records.rows, [&](std::size_t r, Field field) {
    if (records.has_pairs && wording_.has_quote) {
      const char* from = field.text;
      const char* const last = from + field.size;
      char* to = bytes + at;
      for (; from < last; ++from) {
        *to++ = *from;
        if (*from == wording_.quote) ++from;
      }
      field.size = static_cast<std::size_t>(to - (bytes + at));
      field.text = bytes + at;
    } else if (field.size <= kShort) {
      std::memcpy(bytes + at, field.text, kShort);
    } else {
      std::memcpy(bytes + at, field.text, field.size);
    }
    if (IsMissing(field)) {
      SetMissingString(rows_ + r - row);
    } else {
      at += field.size;
    }
    offsets[r + 1] = static_cast<std::int64_t>(at);
    return true;
  });
  rows_ += end - row;
  CheckStrings(first);
  return end;
}

void CsvValues::CheckStrings(std::size_t first) {
  const std::int64_t* const offsets = numbers_.data();
  const auto value = [&](std::size_t row) {
    return std::string_view(bytes_.data() + offsets[row],
                            static_cast<std::size_t>(offsets[row + 1] - offsets[row]));
  };
  unsigned char all = 0;
  for (auto i = offsets[first]; i < offsets[rows_]; ++i)
    all |= static_cast<unsigned char>(bytes_.data()[i]);
  for (std::size_t row = first; all >= 0x80 && row < rows_; ++row)
    if (!IsUtf8(value(row))) RefuseCsv(name_, "a value is not UTF-8");
  for (std::size_t row = first; !is_given_ && !is_text_ && row < rows_; ++row)
    is_text_ = wording_.IsText(value(row));
  if (!is_given_ && !is_text_ && rows_ >= kPatience)
    RefuseCsv(name_, "its values may be dates or other numbers");
}

void CsvValues::Finish() {
  if (kind_ == CsvKind::kString && !is_given_ && !is_text_)
    RefuseCsv(name_, "its values may be dates or other numbers");
  if (kind_ == CsvKind::kString && missing_ > 0) validity_.resize((rows_ + 7) / 8, std::byte{0xFF});
  if (kind_ == CsvKind::kMissing) std::fill_n(numbers_.data(), rows_, kNaN);
  if (kind_ != CsvKind::kInt64 || gaps_.empty()) return;
  if (is_given_) RefuseCsv(name_, "a whole number is missing");
  constexpr auto kExact = static_cast<std::int64_t>(csv::kExact);
  for (std::size_t i = 0; i < rows_; ++i) {
    if (numbers_.data()[i] > kExact || numbers_.data()[i] < -kExact)
      RefuseCsv(name_, "a number is missing, and another one is beyond what a float64 has");
  }
  ToFloat();
  has_gaps_ = true;
}

ColumnSpec CsvValues::spec() const {
  ColumnSpec spec{.name = name_, .dtype = DType::kFloat64};
  if (kind_ == CsvKind::kInt64 || kind_ == CsvKind::kUInt64) spec.dtype = DType::kInt64;
  if (kind_ == CsvKind::kBool) spec.dtype = DType::kBool;
  if (kind_ == CsvKind::kString)
    spec = {.name = name_, .dtype = ColumnSpec{}.dtype, .kind = ColumnKind::kString};
  return spec;
}

Column CsvValues::column() const {
  if (kind_ == CsvKind::kBool) return {.values = std::as_bytes(std::span(bytes_.data(), rows_))};
  if (kind_ != CsvKind::kString)
    return {.values = std::as_bytes(std::span(numbers_.data(), rows_))};
  const std::span offsets(numbers_.data(), rows_ + 1);
  Column made{.values = std::as_bytes(std::span(bytes_.data(), offsets.back())),
              .offsets = offsets};
  if (missing_ > 0) made.validity = validity_;
  return made;
}

}  // namespace orca::data
