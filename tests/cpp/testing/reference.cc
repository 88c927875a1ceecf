#include "testing/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

namespace orca::testing {
namespace {

using comm::DType;
using comm::ReduceOp;

struct Format {
  int mantissa = 0;
  int exponent = 0;
};

Format FormatOf(DType dtype) { return dtype == DType::kFloat16 ? Format{10, 5} : Format{7, 8}; }

double DecodeSmall(std::uint16_t bits, Format format) {
  const int bias = (1 << (format.exponent - 1)) - 1;
  const int exponent = (bits >> format.mantissa) & ((1 << format.exponent) - 1);
  const int fraction = bits & ((1 << format.mantissa) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << format.exponent) - 1) return fraction != 0 ? NAN : sign * INFINITY;
  const int whole = exponent == 0 ? fraction : fraction + (1 << format.mantissa);
  return sign * std::ldexp(whole, std::max(exponent, 1) - bias - format.mantissa);
}

std::uint16_t EncodeSmall(double value, Format format) {
  const int bias = (1 << (format.exponent - 1)) - 1;
  const int infinity = ((1 << format.exponent) - 1) << format.mantissa;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | 1);
  if (value == 0) return static_cast<std::uint16_t>(sign);
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  const int exponent = std::max(std::ilogb(value), 1 - bias);
  const double units = std::nearbyint(std::ldexp(std::fabs(value), format.mantissa - exponent));
  const int bits = ((exponent + bias - 1) << format.mantissa) + static_cast<int>(units);
  return static_cast<std::uint16_t>(sign | std::min(bits, infinity));
}

bool IsFloat(DType dtype) { return dtype <= DType::kBFloat16; }

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

std::int64_t LoadInteger(DType dtype, const std::byte* from) {
  switch (dtype) {
    case DType::kInt8:
      return Load<std::int8_t>(from);
    case DType::kInt16:
      return Load<std::int16_t>(from);
    case DType::kInt32:
      return Load<std::int32_t>(from);
    case DType::kInt64:
      return Load<std::int64_t>(from);
    default:
      return Load<std::uint8_t>(from);
  }
}

void StoreFloat(DType dtype, double value, std::byte* to) {
  if (dtype == DType::kFloat64) {
    std::memcpy(to, &value, 8);
  } else if (dtype == DType::kFloat32) {
    const auto single = static_cast<float>(value);
    std::memcpy(to, &single, 4);
  } else {
    const std::uint16_t bits = EncodeSmall(value, FormatOf(dtype));
    std::memcpy(to, &bits, 2);
  }
}

// Sums have the precision of float32, but for float64. The volatile keeps products and sums apart.
double Round(DType dtype, double value) {
  const volatile double rounded = dtype == DType::kFloat64 ? value : static_cast<float>(value);
  return rounded;
}

double FoldFloats(DType dtype, ReduceOp op, const std::vector<double>& values, double divisor) {
  double result = values[0];
  for (std::size_t i = 1; i < values.size(); ++i) {
    const double value = values[i];
    if (op == ReduceOp::kProduct) {
      result = Round(dtype, result * value);
    } else if (op == ReduceOp::kMin || op == ReduceOp::kMax) {
      if (std::isnan(result)) continue;
      const bool better = op == ReduceOp::kMin ? value < result : value > result;
      if (better || std::isnan(value)) result = value;
    } else {
      result = Round(dtype, result + value);
    }
  }
  return op == ReduceOp::kAverage && divisor > 0 ? Round(dtype, result / divisor) : result;
}

std::int64_t FoldIntegers(ReduceOp op, const std::vector<std::int64_t>& values,
                          std::int64_t divisor) {
  std::int64_t result = values[0];
  for (std::size_t i = 1; i < values.size(); ++i) {
    const std::int64_t value = values[i];
    const auto a = static_cast<std::uint64_t>(result);
    const auto b = static_cast<std::uint64_t>(value);
    switch (op) {
      case ReduceOp::kProduct:
        result = static_cast<std::int64_t>(a * b);
        break;
      case ReduceOp::kMin:
        result = std::min(result, value);
        break;
      case ReduceOp::kMax:
        result = std::max(result, value);
        break;
      case ReduceOp::kBitAnd:
        result = result & value;
        break;
      case ReduceOp::kBitOr:
        result = result | value;
        break;
      case ReduceOp::kBitXor:
        result = result ^ value;
        break;
      default:
        result = static_cast<std::int64_t>(a + b);
    }
  }
  return op == ReduceOp::kAverage && divisor > 0 ? result / divisor : result;
}

std::int64_t FoldBools(ReduceOp op, std::vector<std::int64_t> values) {
  for (auto& value : values) value = value != 0 ? 1 : 0;
  if (op == ReduceOp::kSum) op = ReduceOp::kBitOr;
  return FoldIntegers(op, values, 0);
}

// Element `index` of `sources`, reduced into `to`.
void FoldElement(DType dtype, ReduceOp op, const std::vector<const std::byte*>& sources,
                 const std::vector<double>& factors, std::size_t divisor, std::byte* to) {
  if (IsFloat(dtype)) {
    std::vector<double> values;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const double value = ValueOf(dtype, sources[i]);
      values.push_back(factors.empty() ? value : Round(dtype, value * Round(dtype, factors[i])));
    }
    StoreFloat(dtype, FoldFloats(dtype, op, values, static_cast<double>(divisor)), to);
    return;
  }
  std::vector<std::int64_t> values;
  for (const std::byte* source : sources) values.push_back(LoadInteger(dtype, source));
  const std::int64_t result = dtype == DType::kBool
                                  ? FoldBools(op, values)
                                  : FoldIntegers(op, values, static_cast<std::int64_t>(divisor));
  std::memcpy(to, &result, comm::SizeOf(dtype));  // little endian: cut to the type
}

Buffer FoldTiles(DType dtype, ReduceOp op, const std::vector<Buffer>& tiles,
                 const std::vector<double>& factors, std::size_t divisor) {
  const std::size_t size = comm::SizeOf(dtype);
  Buffer result(kTile * size);
  for (std::size_t i = 0; i < kTile; ++i) {
    std::vector<const std::byte*> sources;
    for (const Buffer& tile : tiles) sources.push_back(tile.data() + i * size);
    FoldElement(dtype, op, sources, factors, divisor, result.data() + i * size);
  }
  return result;
}

}  // namespace

double ValueOf(DType dtype, const std::byte* element) {
  switch (dtype) {
    case DType::kFloat64:
      return Load<double>(element);
    case DType::kFloat32:
      return static_cast<double>(Load<float>(element));
    case DType::kFloat16:
    case DType::kBFloat16:
      return DecodeSmall(Load<std::uint16_t>(element), FormatOf(dtype));
    default:
      return static_cast<double>(LoadInteger(dtype, element));
  }
}

double FactorOf(int rank) { return 0.3 + 0.7 * rank; }

Buffer InputTile(DType dtype, ReduceOp op, int rank) {
  std::mt19937_64 random(static_cast<std::uint64_t>(rank) * 100 +
                         static_cast<std::uint64_t>(dtype));
  const std::size_t size = comm::SizeOf(dtype);
  Buffer tile(kTile * size);
  for (std::size_t i = 0; i < kTile; ++i) {
    std::byte* const to = tile.data() + i * size;
    if (IsFloat(dtype)) {
      StoreFloat(dtype, std::uniform_real_distribution<double>(-2, 2)(random), to);
      continue;
    }
    std::uint64_t bits = random();
    if (op == ReduceOp::kAverage) bits = bits % 12 - (dtype == DType::kUInt8 ? 0 : 6);
    if (dtype == DType::kBool) bits = bits % 4 == 0 ? 0 : 1;
    std::memcpy(to, &bits, size);
  }
  return tile;
}

Buffer ReducedTile(DType dtype, ReduceOp op, const std::vector<std::vector<int>>& hosts) {
  std::size_t world = 0;
  for (const auto& ranks : hosts) world += ranks.size();
  std::vector<Buffer> partials;
  for (const auto& ranks : hosts) {
    std::vector<Buffer> tiles;
    std::vector<double> factors;
    for (const int rank : ranks) {
      tiles.push_back(InputTile(dtype, op, rank));
      if (op == ReduceOp::kPreMulSum) factors.push_back(FactorOf(rank));
    }
    partials.push_back(FoldTiles(dtype, op, tiles, factors, hosts.size() == 1 ? world : 0));
  }
  return hosts.size() == 1 ? partials[0] : FoldTiles(dtype, op, partials, {}, world);
}

std::vector<std::vector<int>> HostsOf(const Layout& layout, int world) {
  std::vector<std::vector<int>> hosts;
  std::map<std::string, std::size_t> known;
  for (int rank = 0; rank < world; ++rank) {
    const auto [entry, is_new] = known.emplace(layout.host(rank), hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[entry->second].push_back(rank);
  }
  return hosts;
}

void FillFrom(const Buffer& tile, std::size_t first, DType dtype, std::span<std::byte> data) {
  const std::size_t size = comm::SizeOf(dtype);
  std::size_t at = first % kTile * size;
  while (!data.empty()) {
    const std::size_t bytes = std::min(tile.size() - at, data.size());
    std::memcpy(data.data(), tile.data() + at, bytes);
    data = data.subspan(bytes);
    at = 0;
  }
}

bool Holds(const Buffer& tile, std::size_t first, DType dtype, std::span<const std::byte> data) {
  std::size_t at = first % kTile * comm::SizeOf(dtype);
  while (!data.empty()) {
    const std::size_t bytes = std::min(tile.size() - at, data.size());
    if (std::memcmp(data.data(), tile.data() + at, bytes) != 0) return false;
    data = data.subspan(bytes);
    at = 0;
  }
  return true;
}

}  // namespace orca::testing
