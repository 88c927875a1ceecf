// One column of CSV, while it is read. Internal to csv*.cc.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/csv_number.h"
#include "orca/data/csv.h"

namespace orca::data {

/// Texts that mean something, found by their first byte and length.
class CsvWords {
 public:
  explicit CsvWords(std::vector<std::string> words);
  const std::vector<std::string>& words() const { return words_; }

  bool Has(const char* text, std::size_t size) const {
    if (size == 0) return has_empty_;
    if (size >= 32 || ((sizes_[static_cast<unsigned char>(*text)] >> size) & 1U) == 0) return false;
    return IsAmong({text, size});
  }

 private:
  bool IsAmong(std::string_view text) const;

  std::vector<std::string> words_;
  bool has_empty_ = false;
  std::array<std::uint32_t, 256> sizes_{};  // by the first byte, a bit for each length
};

/// What the columns of a text have in common.
struct CsvWording {
  explicit CsvWording(const CsvDialect& dialect);
  char separator;
  char quote;
  bool has_quote;
  CsvWords missing, yes, no;

  /// Whether it can be no number, boolean, date or time.
  bool IsText(std::string_view field) const;
};

/// Records behind each other. Field i begins behind ends[i] and ends before ends[i + 1].
struct CsvRecords {
  const char* text;  ///< kCsvSlack bytes can be read behind the last record.
  const std::uint32_t* ends;
  std::size_t rows;
  std::size_t fields;  ///< Of a record.
  bool has_returns;    ///< \r before a newline is no part of a field.
  bool has_pairs;      ///< Two quotes within a field mean one.
};

/// Pieces of memory that nobody uses at the moment.
class CsvPieces final : public CsvMemory {
 public:
  struct Piece {
    std::unique_ptr<std::byte[]> memory;
    std::size_t size = 0;
  };

  CsvPieces();
  /// At least `size` bytes.
  Piece Take(std::size_t size);
  void Give(Piece piece) noexcept;

 private:
  const std::uint64_t forks_;
  std::mutex mutex_;
  std::vector<Piece> free_;  // guarded by mutex_
};

/// Memory that grows, and is not set.
template <typename T>
class CsvBuffer {
 public:
  explicit CsvBuffer(std::shared_ptr<CsvPieces> pieces) : pieces_(std::move(pieces)) {}
  CsvBuffer(CsvBuffer&&) noexcept = default;
  CsvBuffer& operator=(CsvBuffer&&) = delete;
  ~CsvBuffer() {
    if (piece_.memory) pieces_->Give(std::move(piece_));
  }

  T* data() { return reinterpret_cast<T*>(piece_.memory.get()); }
  const T* data() const { return reinterpret_cast<const T*>(piece_.memory.get()); }
  std::size_t capacity() const { return piece_.size / sizeof(T); }
  /// Keeps the first `used`, if there are so many.
  void Reserve(std::size_t wanted, std::size_t used) {
    if (wanted <= capacity()) return;
    CsvPieces::Piece grown = pieces_->Take(wanted * sizeof(T));
    used = std::min(used, capacity());
    if (used > 0) std::memcpy(grown.memory.get(), piece_.memory.get(), used * sizeof(T));
    std::swap(piece_, grown);
    if (grown.memory) pieces_->Give(std::move(grown));
  }

 private:
  std::shared_ptr<CsvPieces> pieces_;
  CsvPieces::Piece piece_;
};

/// Throws that this reader does not read it.
[[noreturn]] void RefuseCsv(const std::string& name, const std::string& reason);

class CsvValues {
 public:
  CsvValues(const CsvWording& wording, const CsvColumn& wanted, std::size_t field,
            const std::shared_ptr<CsvPieces>& pieces);

  /// Whether it has not read all rows, since its first ones were taken for another kind.
  bool is_behind() const { return behind_ != CsvKind::kSkipped; }
  /// Makes it read all rows again.
  void Restart();
  /// Adds the values of all records; `expected` rows in all, about.
  void Add(const CsvRecords& records, std::size_t expected);
  /// Once all rows are there.
  void Finish();

  const std::string& name() const { return name_; }
  CsvKind kind() const { return has_gaps_ ? CsvKind::kInt64 : kind_; }
  std::uint64_t missing() const { return missing_; }
  ColumnSpec spec() const;
  Column column() const;

 private:
  struct Field {
    const char* text;
    std::size_t size;
  };
  template <bool kHasReturn>
  Field Get(const CsvRecords& records, std::size_t row) const;
  [[noreturn]] void RefuseQuotes() const;
  template <typename Step>
  std::size_t Each(const CsvRecords& records, std::size_t row, std::size_t end, Step step) const;

  bool IsMissing(Field field) const { return wording_.missing.Has(field.text, field.size); }
  void Loosen(Field field);
  void ToUnsigned(Field field);
  void Begin(CsvKind kind);
  void ToFloat();
  std::size_t AddUndecided(const CsvRecords& records, std::size_t row);
  std::size_t AddNumbers(const CsvRecords& records, std::size_t row);
  bool AddNumber(Field field, std::size_t row);
  std::size_t AddBools(const CsvRecords& records, std::size_t row);
  std::size_t AddStrings(const CsvRecords& records, std::size_t row);
  void CheckStrings(std::size_t first);
  void SetMissingString(std::size_t row);

  const CsvWording& wording_;
  std::string name_;
  std::size_t field_;
  bool is_given_;
  CsvKind kind_ = CsvKind::kMissing;
  CsvKind behind_ = CsvKind::kSkipped;  // what to begin with again; kSkipped: nothing
  std::size_t rows_ = 0;
  std::uint64_t missing_ = 0;
  bool has_minus_zero_ = false;      // among whole numbers, which have none
  bool has_gaps_ = false;            // of whole numbers, which are float64s then
  bool is_text_ = false;             // a value that can be nothing else was seen
  CsvBuffer<std::int64_t> numbers_;  // int64s, bits of float64s, or offsets of strings
  CsvBuffer<char> bytes_;            // of strings and booleans
  std::vector<std::size_t> gaps_;    // rows of whole numbers that are missing
  std::vector<std::byte> validity_;  // of strings; empty while none is missing
};

}  // namespace orca::data
