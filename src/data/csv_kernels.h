// What is done to each byte and each number of CSV.
#pragma once

#include <cstddef>
#include <cstdint>

namespace orca::data {

/// What is known at the end of a block of 64 bytes.
struct CsvScan {
  char separator = ',';
  char quote = '"';
  bool has_quote = true;
  std::uint64_t inside = 0;        ///< All ones in quotes.
  std::uint64_t can_open = 1;      ///< Whether quotes may begin at the next byte.
  std::uint64_t after_quote = 0;   ///< Whether the last byte is a quote.
  std::uint64_t after_return = 0;  ///< Whether a newline must be the next byte.
  std::uint64_t newlines = 0;      ///< That end records.
  bool has_returns = false;        ///< \r outside of quotes.
  bool has_pairs = false;          ///< Two quotes that mean one.
  bool is_odd = false;             ///< Quotes in the middle of a field, or \r in that of a line.
};

/// Writes where separators and newlines are, outside of quotes: `base` is the first byte's number.
/// `ends` has room for one a byte, and 64 more. Returns the end of what was written.
using CsvScanFunction = std::uint32_t* (*)(const char* text, std::size_t blocks, std::uint32_t base,
                                           CsvScan& scan, std::uint32_t* ends);

/// Numbers without their signs, as they are written.
struct CsvDigits {
  static constexpr std::size_t kMost = 256;
  std::uint64_t words[kMost];      ///< The first eight bytes of each.
  std::uint64_t sizes[kMost];      ///< How many bytes it has.
  std::uint64_t negatives[kMost];  ///< 1: it is negative.
  std::uint64_t left[kMost];       ///< 0: it was made a number.
};

/// Makes numbers of `count` digits, those of one to eight bytes; `numbers` has int64s or the bits
/// of float64s. Returns whether all are done. Of the others `numbers` says nothing; -0 is one of
/// them.
using CsvNumbersFunction = bool (*)(CsvDigits& digits, std::size_t count, std::int64_t* numbers);

/// One instruction set's.
struct CsvKernels {
  CsvScanFunction scan;
  CsvNumbersFunction ints;
  CsvNumbersFunction floats;
};

/// Those for this processor.
const CsvKernels& FindCsvKernels();

extern const CsvKernels kCsvKernelsBaseline;
#if defined(__x86_64__)
extern const CsvKernels kCsvKernelsAvx2;
extern const CsvKernels kCsvKernelsAvx512;
#endif

}  // namespace orca::data
