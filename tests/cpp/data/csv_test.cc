#include "orca/data/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "data/csv_kernels.h"
#include "data/csv_number.h"
#include "orca/core/error.h"

namespace orca::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<const CsvTable> Parse(std::string_view text, std::vector<CsvColumn> columns,
                                      const CsvDialect& dialect = {}) {
  return ParseCsv(std::as_bytes(std::span(text)), dialect, columns);
}

// The values of a column, as text.
std::vector<std::string> Values(const CsvTable& table, std::size_t c) {
  std::vector<std::string> values;
  const Column& column = table.columns()[c];
  const ColumnSpec& spec = table.specs()[c];
  for (std::uint64_t row = 0; row < table.rows(); ++row) {
    if (spec.kind == ColumnKind::kString) {
      values.push_back(column.IsMissing(row) ? "missing" : std::string(column.Text(row)));
    } else if (spec.dtype == DType::kBool) {
      values.emplace_back(column.values[row] == std::byte{0} ? "no" : "yes");
    } else if (spec.dtype == DType::kInt64) {
      values.push_back(
          std::to_string(reinterpret_cast<const std::int64_t*>(column.values.data())[row]));
    } else {
      const double value = reinterpret_cast<const double*>(column.values.data())[row];
      values.push_back(std::isnan(value) ? "missing" : std::to_string(value));
    }
  }
  return values;
}

std::vector<std::pair<std::string, const CsvKernels*>> AllKernels() {
  std::vector<std::pair<std::string, const CsvKernels*>> all{{"baseline", &kCsvKernelsBaseline}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi"))
    all.emplace_back("avx2", &kCsvKernelsAvx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    all.emplace_back("avx512", &kCsvKernelsAvx512);
#endif
  return all;
}

TEST(CsvTest, ColumnsHaveTheKindsThatTheirValuesFit) {
  const auto table = Parse("1,0.5,yes,true,\n-2,1e3,,false,\n3,7,\"a \"\"b\"\"\n\",true,\"\"\n",
                           {{"a"}, {"b"}, {"c"}, {"d"}, {"e"}});
  EXPECT_EQ(table->rows(), 3U);
  EXPECT_THAT(table->kinds(), ElementsAre(CsvKind::kInt64, CsvKind::kFloat64, CsvKind::kString,
                                          CsvKind::kBool, CsvKind::kMissing));
  EXPECT_THAT(table->missing(), ElementsAre(0, 0, 1, 0, 3));
  EXPECT_THAT(Values(*table, 0), ElementsAre("1", "-2", "3"));
  EXPECT_THAT(Values(*table, 1), ElementsAre("0.500000", "1000.000000", "7.000000"));
  EXPECT_THAT(Values(*table, 2), ElementsAre("yes", "missing", "a \"b\"\n"));
  EXPECT_THAT(Values(*table, 3), ElementsAre("yes", "no", "yes"));
  EXPECT_THAT(Values(*table, 4), ElementsAre("missing", "missing", "missing"));
}

TEST(CsvTest, WholeNumbersOfWhichSomeAreMissingAreFloats) {
  const auto table = Parse("\n\n5\n\"\"\n-0\n", {{"a"}});
  EXPECT_THAT(table->kinds(), ElementsAre(CsvKind::kInt64));
  EXPECT_THAT(Values(*table, 0), ElementsAre("5.000000", "missing", "0.000000"));
}

TEST(CsvTest, WholeNumbersBelowTwoToThe64AreUnsignedIfNoneIsNegative) {
  const auto table = Parse(
      "1,9223372036854775808,9223372036854775808,x,1.5\n"
      "18446744073709551615,0,0.5,9223372036854775808,18446744073709551616\n"
      "0012,0018446744073709551615,18446744073709551615,,1\n",
      {{"a"}, {"b"}, {"c"}, {"d"}, {"e"}});
  EXPECT_THAT(table->kinds(), ElementsAre(CsvKind::kUInt64, CsvKind::kUInt64, CsvKind::kFloat64,
                                          CsvKind::kString, CsvKind::kFloat64));
  EXPECT_THAT(Values(*table, 0), ElementsAre("1", "-1", "12"));  // The bits, of an int64.
  EXPECT_THAT(Values(*table, 1), ElementsAre("-9223372036854775808", "0", "-1"));
  EXPECT_THAT(Values(*table, 2),
              ElementsAre("9223372036854775808.000000", "0.500000", "18446744073709551616.000000"));
  EXPECT_THAT(Values(*table, 3), ElementsAre("x", "9223372036854775808", "missing"));
  const auto wanted = Parse("7\n8\n", {{"a", CsvKind::kUInt64}});
  EXPECT_THAT(Values(*wanted, 0), ElementsAre("7", "8"));
}

TEST(CsvTest, KindsThatAreWantedAreGiven) {
  const auto table =
      Parse("007,x,1\r\n8,y,2",
            {{"a", CsvKind::kString}, {"b", CsvKind::kSkipped}, {"c", CsvKind::kFloat64}});
  ASSERT_EQ(table->specs().size(), 2U);
  EXPECT_THAT(Values(*table, 0), ElementsAre("007", "8"));
  EXPECT_THAT(Values(*table, 1), ElementsAre("1.000000", "2.000000"));
}

TEST(CsvTest, AColumnThatTurnsOutToBeTextIsReadAgain) {
  std::string text;
  for (int i = 0; i < 30000; ++i) text += std::to_string(i) + ";" + std::to_string(i) + "\n";
  text += "1.5;text\n";
  const auto table = Parse(text, {{"a"}, {"b"}}, {.separator = ';'});
  EXPECT_THAT(table->kinds(), ElementsAre(CsvKind::kFloat64, CsvKind::kString));
  const auto values = Values(*table, 1);
  EXPECT_EQ(values[29999], "29999");
  EXPECT_EQ(values[30000], "text");
}

TEST(CsvTest, WhatItDoesNotReadIsNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"1,2\n3\n", "record 2 has 1 fields, and not 2"},
      {"1,2\n3,4,5\n", "record 2 has 3 fields, and not 2"},
      {"1,\"2\n", "quotes are open at the end"},
      {"1,2\"3\n", "quotes within a field"},
      {"1,\"2\"3\n", "goes on behind its quotes"},
      {"1,2\r3,4\n", "a carriage return in a line"},
      {"1,2\r", "a carriage return"},
      {"1,\xC0\xAF\n1,x\n", "column 'b': a value is not UTF-8"},
      {"1,2020-01-01\n", "column 'b': its values may be dates"},
      {"1,true\n2,\n", "column 'b': a boolean is missing"},
      {"1,9007199254740993\n2,\n", "column 'b': a number is missing"},
      {"1,18446744073709551616\n", "column 'b': its whole numbers do not fit"},
      {"1,-9223372036854775809\n", "column 'b': its whole numbers do not fit"},
      {"1,5\n2,18446744073709551616\n", "column 'b': its whole numbers do not fit"},
      {"1,-1\n2,9223372036854775808\n", "column 'b': its whole numbers do not fit"},
      {"1,9223372036854775808\n2,-1\n", "column 'b': its whole numbers do not fit"},
      {"1,\n2,9223372036854775808\n", "column 'b': its whole numbers do not fit"},
      {"1,9223372036854775808\n2,\n", "column 'b': a number is missing"},
      {"", "there are no records"},
  };
  for (const auto& [text, reason] : cases) {
    try {
      Parse(text, {{"a"}, {"b"}});
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kUnavailable);
      EXPECT_THAT(error.what(), HasSubstr(reason)) << text;
    }
  }
  EXPECT_THROW(Parse("x\n", {{"a", CsvKind::kInt64}}), Error);
}

TEST(CsvTest, ADialectThatContradictsItselfIsRefused) {
  for (const CsvDialect& dialect : {CsvDialect{.separator = '"'}, CsvDialect{.separator = '\n'},
                                    CsvDialect{.missing = {"-1"}}, CsvDialect{.yes = {"\"y"}}}) {
    try {
      Parse("1\n", {{"a"}}, dialect);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
    }
  }
}

TEST(CsvTest, ColumnsGoIntoAShardAsTheyAre) {
  const auto table = Parse("1,a\n2,\n", {{"n"}, {"t"}});
  const auto shard =
      Shard::Put(ShardShelf::Create(), table->specs(), table->rows(), table->columns());
  EXPECT_EQ(shard->rows(), 2U);
  EXPECT_EQ(shard->columns()[1].Text(0), "a");
  EXPECT_TRUE(shard->columns()[1].IsMissing(1));
}

TEST(CsvTest, NothingBehindTheTextIsRead) {
  constexpr std::size_t kPage = 4096;
  auto* const pages = static_cast<char*>(
      ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(::mprotect(pages + kPage, kPage, PROT_NONE), 0);
  for (std::size_t size = 1; size < 300; ++size) {
    char* const text = pages + kPage - size;
    for (std::size_t i = 0; i < size; ++i) text[i] = i % 3 == 2 ? (i % 2 == 0 ? '\n' : ',') : '1';
    const CsvColumn columns[] = {{"a"}, {"b"}};
    try {
      ParseCsv(std::as_bytes(std::span(text, size)), {}, columns);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kUnavailable);
    }
  }
  ::munmap(pages, 2 * kPage);
}

TEST(CsvKernelsTest, FieldsEndWhereAByteByByteReaderFindsThem) {
  std::mt19937_64 random(1);
  for (int turn = 0; turn < 500; ++turn) {
    std::string text(64 * 8, '\0');
    bool in_field = false, in_quotes = false;
    std::vector<std::uint32_t> expected;
    for (std::size_t i = 0; i < text.size(); ++i) {  // Quotes are around whole fields only.
      const char picked = "ab1,,\n\"\r"[random() % 7];
      if (in_quotes) {
        text[i] = picked;
        if (picked == '"') in_quotes = false;
        continue;
      }
      const bool after_quote = i > 0 && text[i - 1] == '"';
      text[i] = (picked == '"' && in_field) || (after_quote && picked != '\n') ? ',' : picked;
      in_field = text[i] != ',' && text[i] != '\n';
      in_quotes = text[i] == '"';
      if (!in_field) expected.push_back(static_cast<std::uint32_t>(i) + 100);
    }
    for (const auto& [name, kernels] : AllKernels()) {
      CsvScan scan;
      std::vector<std::uint32_t> ends(text.size() + 64);
      std::uint32_t* end = kernels->scan(text.data(), 3, 100, scan, ends.data());
      end = kernels->scan(text.data() + 192, 5, 292, scan, end);
      ends.resize(static_cast<std::size_t>(end - ends.data()));
      EXPECT_EQ(ends, expected) << name;
      EXPECT_FALSE(scan.is_odd) << name;
      EXPECT_EQ(scan.inside != 0, in_quotes) << name;
    }
  }
}

TEST(CsvKernelsTest, AQuoteWithinAFieldAndAReturnWithinALineAreOddAtEveryPlace) {
  for (const auto& [name, kernels] : AllKernels()) {
    for (std::size_t at = 1; at < 127; ++at) {
      std::vector<std::uint32_t> ends(128 + 64);
      for (const char byte : {'"', '\r'}) {
        std::string text(128, 'x');
        text[at] = byte;
        CsvScan scan;
        kernels->scan(text.data(), 2, 0, scan, ends.data());
        EXPECT_TRUE(scan.is_odd) << name << at;
        text[byte == '"' ? at - 1 : at + 1] = '\n';
        scan = {};
        kernels->scan(text.data(), 2, 0, scan, ends.data());
        EXPECT_FALSE(scan.is_odd) << name << at;
      }
    }
  }
}

// A number, as it may be written in a file.
std::string RandomNumber(std::mt19937_64& random) {
  const auto digits = [&](std::size_t most) {
    std::string made(random() % (most + 1), '0');
    for (char& digit : made) digit = static_cast<char>('0' + random() % 10);
    return made;
  };
  const std::size_t most = random() % 2 == 0 ? 4 : 20;
  std::string text = (random() % 2 == 0 ? "-" : "") + digits(most);
  if (random() % 3 != 0) text += "." + digits(most);
  if (random() % 4 == 0) text += (random() % 2 == 0 ? "e" : "E-") + digits(2);
  if (random() % 8 == 0) text.insert(random() % (text.size() + 1), 1, "x-.e+/:"[random() % 7]);
  return text;
}

bool IsFloat(const std::string& text, double& value) {
  if (text.find_first_not_of("0123456789.eE+-") != text.npos || text.empty() || text[0] == '+')
    return false;
  char* end = nullptr;
  value = std::strtod(text.c_str(), &end);
  return end == text.c_str() + text.size() && !std::isinf(value);
}

bool IsInt(const std::string& text, std::int64_t& value) {
  if (text.find_first_not_of("0123456789-") != text.npos || text.empty()) return false;
  char* end = nullptr;
  errno = 0;
  value = std::strtoll(text.c_str(), &end, 10);
  return errno == 0 && end == text.c_str() + text.size();
}

TEST(CsvNumberTest, NumbersAreThoseOfTheCLibraryBitForBit) {
  std::mt19937_64 random(2);
  for (int turn = 0; turn < 300000; ++turn) {
    const std::string text = RandomNumber(random);
    const std::string padded = text + std::string(kCsvSlack, random() % 2 == 0 ? '7' : '.');
    double number = 0, expected = 0;
    const bool is_float = IsFloat(text, expected);
    if (is_float && std::abs(expected) < 1e-307)
      continue;  // Some libraries refuse what is smaller.
    ASSERT_EQ(ParseCsvFloat(padded.data(), text.size(), number), is_float) << text;
    if (is_float) {
      ASSERT_EQ(std::bit_cast<std::uint64_t>(number), std::bit_cast<std::uint64_t>(expected))
          << text;
    }
    std::int64_t whole = 0, wanted = 0;
    const bool is_int = IsInt(text, wanted);
    ASSERT_EQ(ParseCsvInt(padded.data(), text.size(), whole), is_int) << text;
    if (is_int) {
      ASSERT_EQ(whole, wanted) << text;
    }
  }
}

TEST(CsvNumberTest, KernelsMakeTheSameNumbersOrLeaveThem) {
  std::mt19937_64 random(3);
  const auto all = AllKernels();
  std::size_t made = 0;
  for (int turn = 0; turn < 1000; ++turn) {
    CsvDigits digits;
    std::vector<std::string> texts;
    const std::size_t count = 1 + random() % CsvDigits::kMost;
    for (std::size_t i = 0; i < count; ++i) {
      texts.push_back(RandomNumber(random));
      const bool negative = texts[i][0] == '-';
      const std::string padded = texts[i].substr(negative ? 1 : 0) + ".1234567";
      digits.words[i] = csv::Load(padded.data());
      digits.sizes[i] = texts[i].size() - (negative ? 1 : 0);
      digits.negatives[i] = negative ? 1 : 0;
    }
    for (const auto& [name, kernels] : all) {
      std::vector<std::int64_t> numbers(count);
      const bool none_left = kernels->floats(digits, count, numbers.data());
      EXPECT_EQ(none_left, std::all_of(digits.left, digits.left + count,
                                       [](std::uint64_t left) { return left == 0; }));
      for (std::size_t i = 0; i < count; ++i) {
        double expected = 0;
        if (digits.left[i] != 0) continue;
        ++made;
        ASSERT_TRUE(IsFloat(texts[i], expected)) << name << " " << texts[i];
        ASSERT_EQ(numbers[i], std::bit_cast<std::int64_t>(expected)) << name << " " << texts[i];
      }
      kernels->ints(digits, count, numbers.data());
      for (std::size_t i = 0; i < count; ++i) {
        std::int64_t expected = 0;
        if (digits.left[i] != 0) continue;
        ASSERT_TRUE(IsInt(texts[i], expected)) << name << " " << texts[i];
        ASSERT_EQ(numbers[i], expected) << name << " " << texts[i];
      }
    }
  }
  EXPECT_GT(made, 10000U);
}

}  // namespace
}  // namespace orca::data
