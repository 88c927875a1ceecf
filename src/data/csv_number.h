// Decimal numbers, eight digits at a time.
#pragma once

#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace orca::data {

/// How many bytes behind a field its readers may read.
inline constexpr std::size_t kCsvSlack = 32;

namespace csv {

static_assert(std::endian::native == std::endian::little, "digits are taken from words");

inline constexpr std::uint64_t kZeros = 0x3030303030303030;

inline std::uint64_t Load(const char* text) {
  std::uint64_t word = 0;
  std::memcpy(&word, text, sizeof word);
  return word;
}

/// Whether all bytes are 0 to 9.
inline bool AreDigits(std::uint64_t word) {
  return (((word + 0x7676767676767676) | word) & 0x8080808080808080) == 0;
}

/// The number of eight digits, the lowest byte first.
inline std::uint64_t Join(std::uint64_t digits) {
  digits = digits * 10 + (digits >> 8);
  constexpr std::uint64_t kMask = 0x000000FF000000FF;
  return ((digits & kMask) * (100 + (1000000ULL << 32)) +
          ((digits >> 16) & kMask) * (1 + (10000ULL << 32))) >>
         32;
}

/// A 1 in the highest bit of the first byte that is a dot; what follows it says nothing.
inline std::uint64_t FindDot(std::uint64_t word) {
  const std::uint64_t x = word ^ 0x2E2E2E2E2E2E2E2E;
  return (x - 0x0101010101010101) & ~x & 0x8080808080808080;
}

__extension__ typedef unsigned __int128 Wide;

/// Sixteen digits, the first one in the lowest byte.
inline Wide Both(const char* text) {
  return Wide{Load(text + 8) ^ kZeros} << 64 | (Load(text) ^ kZeros);
}

/// As many as sixteen digits have decimals; each is a float64.
inline constexpr double kPowers[] = {1e0, 1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7, 1e8,
                                     1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16};

inline constexpr std::uint64_t kExact = std::uint64_t{1} << 53;

[[gnu::noinline]] inline bool LongInt(const char* text, std::size_t size, bool negative,
                                      std::int64_t& value) {
  while (size > 1 && *text == '0') ++text, --size;
  if (size > 19) return false;
  std::uint64_t number = 0;  // 19 digits fit.
  for (std::size_t i = 0; i < size; ++i) {
    const unsigned digit = static_cast<unsigned char>(text[i]) - unsigned{'0'};
    if (digit > 9) return false;
    number = number * 10 + digit;
  }
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (number > kMax + (negative ? 1 : 0)) return false;
  value = static_cast<std::int64_t>(negative ? 0 - number : number);
  return true;
}

[[gnu::noinline]] inline bool LongFloat(const char* text, std::size_t size, bool negative,
                                        double& value) {
  const char first = *text;
  if (first != '.' && (first < '0' || first > '9')) return false;  // No inf, no nan, no sign.
  const auto [end, error] = std::from_chars(text, text + size, value);
  if (error != std::errc() || end != text + size) return false;
  if (negative) value = -value;
  return true;
}

// Signs are as often guessed wrongly as not, so nothing is skipped for them.
inline std::int64_t Signed(std::uint64_t number, bool negative) {
  const std::uint64_t sign = 0 - std::uint64_t{negative};
  return static_cast<std::int64_t>((number ^ sign) - sign);
}

// Both are exact, so their quotient is rounded once.
inline double Quotient(std::uint64_t number, std::size_t decimals, bool negative) {
  const double quotient =
      static_cast<double>(static_cast<std::int64_t>(number)) / kPowers[decimals];
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(quotient) ^
                               (std::uint64_t{negative} << 63));
}

// Of 9 bytes and more.
[[gnu::noinline]] inline bool WideInt(const char* text, std::size_t size, bool negative,
                                      std::int64_t& value) {
  if (size > 16) return LongInt(text, size, negative, value);
  const Wide all = Both(text) << (128 - 8 * size);
  const auto high = static_cast<std::uint64_t>(all);
  const auto low = static_cast<std::uint64_t>(all >> 64);
  if (!AreDigits(high) || !AreDigits(low)) return false;
  value = Signed(Join(high) * 100000000 + Join(low), negative);
  return true;
}

// Of 9 bytes and more.
[[gnu::noinline]] inline bool WideFloat(const char* text, std::size_t size, bool negative,
                                        double& value) {
  if (size > 16) return LongFloat(text, size, negative, value);
  Wide digits = Both(text);
  std::size_t count = size, decimals = 0;
  const std::uint64_t in_first = FindDot(Load(text));
  const std::uint64_t in_second = FindDot(Load(text + 8)) << (128 - 8 * size);
  if ((in_first | in_second) != 0) {
    const std::size_t before =
        in_first != 0 ? static_cast<std::size_t>(__builtin_ctzll(in_first)) / 8
                      : static_cast<std::size_t>(__builtin_ctzll(in_second)) / 8 - (16 - size) + 8;
    const Wide mask = (Wide{1} << (8 * before)) - 1;
    digits = (digits & mask) | ((digits >> 8) & ~mask);
    decimals = --count - before;
  }
  digits <<= 128 - 8 * count;
  const auto high = static_cast<std::uint64_t>(digits);
  const auto low = static_cast<std::uint64_t>(digits >> 64);
  if (!AreDigits(high) || !AreDigits(low)) return LongFloat(text, size, negative, value);
  const std::uint64_t number = Join(high) * 100000000 + Join(low);
  if (number > kExact) return LongFloat(text, size, negative, value);
  value = Quotient(number, decimals, negative);
  return true;
}

}  // namespace csv

/// A whole number of any size that an int64 has. Reads up to kCsvSlack bytes behind it.
[[gnu::always_inline]] inline bool ParseCsvInt(const char* text, std::size_t size,
                                               std::int64_t& value) {
  if (size == 0) return false;
  const bool negative = *text == '-';
  text += negative, size -= negative;
  if (size - 1 >= 8) return size != 0 && csv::WideInt(text, size, negative, value);
  const std::uint64_t digits = (csv::Load(text) ^ csv::kZeros) << (64 - 8 * size);
  if (!csv::AreDigits(digits)) return false;
  value = csv::Signed(csv::Join(digits), negative);
  return true;
}

/// Whether it is a whole number, of any size.
inline bool IsCsvWhole(const char* text, std::size_t size) {
  const std::size_t sign = size > 0 && *text == '-' ? 1 : 0;
  if (size == sign) return false;
  for (std::size_t i = sign; i < size; ++i)
    if (text[i] < '0' || text[i] > '9') return false;
  return true;
}

/// A whole number from 0 to 2^64 - 1.
inline bool ParseCsvUInt(const char* text, std::size_t size, std::uint64_t& value) {
  const auto [end, error] = std::from_chars(text, text + size, value);
  return error == std::errc() && end == text + size;
}

/// A decimal number, with an exponent or without, as the nearest float64. False for one beyond the
/// largest or below the smallest. Reads up to kCsvSlack bytes behind it.
[[gnu::always_inline]] inline bool ParseCsvFloat(const char* text, std::size_t size,
                                                 double& value) {
  if (size == 0) return false;
  const bool negative = *text == '-';
  text += negative, size -= negative;
  if (size - 1 >= 8) return size != 0 && csv::WideFloat(text, size, negative, value);
  const std::uint64_t word = csv::Load(text);
  const std::uint64_t dot = csv::FindDot(word) << (64 - 8 * size);
  std::uint64_t digits = word ^ csv::kZeros;
  std::size_t count = size, decimals = 0;
  if (dot != 0) {
    const auto before = static_cast<std::size_t>(__builtin_ctzll(dot)) / 8 - (8 - size);
    const std::uint64_t mask = (std::uint64_t{1} << (8 * before)) - 1;
    digits = (digits & mask) | ((digits >> 8) & ~mask);
    decimals = --count - before;
    if (count == 0) return false;
  }
  digits <<= 64 - 8 * count;
  if (!csv::AreDigits(digits)) return csv::LongFloat(text, size, negative, value);
  value = csv::Quotient(csv::Join(digits), decimals, negative);
  return true;
}

}  // namespace orca::data
