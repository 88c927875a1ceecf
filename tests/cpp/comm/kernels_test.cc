// Every kernel against a scalar definition written here on its own.
#include "orca/comm/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/kernels_table.h"
#include "orca/core/error.h"

namespace orca::comm {
namespace {

using ::testing::HasSubstr;

using Buffer = std::vector<std::byte>;
using Random = std::mt19937_64;

constexpr std::size_t kCounts[] = {0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 1000, 4097};
constexpr std::size_t kMostSources = 9;

// --- 16-bit floats by their definition: sign, exponent, mantissa, rounded by nearbyint. ---

struct Format {
  int mantissa_bits;
  int exponent_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int special_exponent() const { return (1 << exponent_bits) - 1; }
};
constexpr Format kHalf = {10, 5};
constexpr Format kBrain = {7, 8};

double Decode(std::uint16_t bits, Format format) {
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = (bits & 0x7fff) >> format.mantissa_bits;
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  if (exponent == format.special_exponent()) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  const int implicit = exponent > 0 ? 1 << format.mantissa_bits : 0;
  const int scale = std::max(exponent, 1) - format.bias() - format.mantissa_bits;
  return sign * std::ldexp(implicit + mantissa, scale);
}

std::uint16_t Encode(double value, Format format) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const int infinity = format.special_exponent() << format.mantissa_bits;
  const int least = 1 - format.bias();
  if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | 1);
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  if (value == 0) return static_cast<std::uint16_t>(sign);
  const int exponent = std::max(std::ilogb(value), least);
  const auto steps = static_cast<int>(
      std::nearbyint(std::ldexp(std::fabs(value), format.mantissa_bits - exponent)));
  // A mantissa that was rounded up to the next power of two carries into the exponent by itself.
  const int bits = ((exponent - least) << format.mantissa_bits) + steps;
  return static_cast<std::uint16_t>(sign | std::min(bits, infinity));
}

// --- The reference: one element from one of each source. ---

template <typename T>
T Pick(bool first, T a, T b) {
  return first ? a : b;
}

/// `Round` brings a result back to the precision that sums have.
template <typename T, typename Round>
T ReduceFloats(const Reduction& reduction, const std::vector<T>& values, Round round) {
  const auto scaled = [&](std::size_t i) -> T {
    if (reduction.op != ReduceOp::kPreMulSum) return values[i];
    return round(values[i] * round(static_cast<T>(reduction.factors[i])));
  };
  T result = scaled(0);
  for (std::size_t i = 1; i < values.size(); ++i) {
    const T value = scaled(i);
    switch (reduction.op) {
      case ReduceOp::kProduct:
        result = round(result * value);
        break;
      case ReduceOp::kMin:
        result = Pick(std::isnan(result) || result < value, result, value);
        break;
      case ReduceOp::kMax:
        result = Pick(std::isnan(result) || result > value, result, value);
        break;
      default:
        result = round(result + value);
    }
  }
  const bool divides = reduction.op == ReduceOp::kAverage && reduction.divisor > 0;
  return divides ? round(result / static_cast<T>(reduction.divisor)) : result;
}

// float32 operations in double, rounded to float, are those of float32: 53 bits are more than 2 *
// 24 + 2.
double ReduceAsFloat32(const Reduction& reduction, const std::vector<double>& values) {
  return ReduceFloats(reduction, values,
                      [](double value) { return static_cast<double>(static_cast<float>(value)); });
}

double ReduceAsFloat64(const Reduction& reduction, const std::vector<double>& values) {
  // The volatile keeps a compiler from fusing a product with a sum.
  return ReduceFloats(reduction, values, [](double value) {
    const volatile double rounded = value;
    return double{rounded};
  });
}

/// In 64 bits with wrap-around; the caller cuts to its type, so averages of narrow types do not
/// overflow.
std::int64_t ReduceIntegers(const Reduction& reduction, const std::vector<std::int64_t>& values) {
  auto result = static_cast<std::uint64_t>(values[0]);
  for (std::size_t i = 1; i < values.size(); ++i) {
    const auto value = static_cast<std::uint64_t>(values[i]);
    switch (reduction.op) {
      case ReduceOp::kProduct:
        result *= value;
        break;
      case ReduceOp::kMin:
        result = Pick(static_cast<std::int64_t>(result) < values[i], result, value);
        break;
      case ReduceOp::kMax:
        result = Pick(static_cast<std::int64_t>(result) > values[i], result, value);
        break;
      case ReduceOp::kBitAnd:
        result &= value;
        break;
      case ReduceOp::kBitOr:
        result |= value;
        break;
      case ReduceOp::kBitXor:
        result ^= value;
        break;
      default:
        result += value;
    }
  }
  const bool divides = reduction.op == ReduceOp::kAverage && reduction.divisor > 0;
  const auto sum = static_cast<std::int64_t>(result);
  return divides ? sum / static_cast<std::int64_t>(reduction.divisor) : sum;
}

bool ReduceBools(ReduceOp op, const std::vector<bool>& values) {
  const auto trues = std::count(values.begin(), values.end(), true);
  switch (op) {
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBitAnd:
      return trues == static_cast<std::ptrdiff_t>(values.size());
    case ReduceOp::kBitXor:
      return trues % 2 == 1;
    default:
      return trues > 0;
  }
}

template <typename T>
T At(const std::byte* data, std::size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Put(Buffer& buffer, std::size_t index, T value) {
  std::memcpy(buffer.data() + index * sizeof(T), &value, sizeof(T));
}

/// Calls `visit` with a value of the type that stores `dtype`.
template <typename Visit>
void WithStorage(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kFloat64:
      return visit(double{});
    case DType::kFloat32:
      return visit(float{});
    case DType::kFloat16:
    case DType::kBFloat16:
      return visit(std::uint16_t{});
    case DType::kInt8:
      return visit(std::int8_t{});
    case DType::kInt16:
      return visit(std::int16_t{});
    case DType::kInt32:
      return visit(std::int32_t{});
    case DType::kInt64:
      return visit(std::int64_t{});
    case DType::kUInt8:
    case DType::kBool:
      return visit(std::uint8_t{});
  }
}

template <typename T>
T ReduceElement(const Reduction& reduction, const std::vector<T>& values) {
  if constexpr (std::is_floating_point_v<T>) {
    const std::vector<double> wide(values.begin(), values.end());
    return static_cast<T>(sizeof(T) == 4 ? ReduceAsFloat32(reduction, wide)
                                         : ReduceAsFloat64(reduction, wide));
  } else if (reduction.dtype == DType::kFloat16 || reduction.dtype == DType::kBFloat16) {
    const Format format = reduction.dtype == DType::kFloat16 ? kHalf : kBrain;
    std::vector<double> wide;
    for (const T value : values) wide.push_back(Decode(static_cast<std::uint16_t>(value), format));
    return static_cast<T>(Encode(ReduceAsFloat32(reduction, wide), format));
  } else if (reduction.dtype == DType::kBool) {
    return static_cast<T>(
        ReduceBools(reduction.op, std::vector<bool>(values.begin(), values.end())));
  } else {
    return static_cast<T>(
        ReduceIntegers(reduction, std::vector<std::int64_t>(values.begin(), values.end())));
  }
}

Buffer Reference(const Reduction& reduction, const std::vector<Buffer>& srcs, std::size_t count) {
  Buffer result(count * SizeOf(reduction.dtype));
  WithStorage(reduction.dtype, [&]<typename T>(T) {
    std::vector<T> values(srcs.size());
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t s = 0; s < srcs.size(); ++s) values[s] = At<T>(srcs[s].data(), i);
      Put(result, i, ReduceElement(reduction, values));
    }
  });
  return result;
}

// --- Input and comparison. ---

bool IsNaN(const std::byte* data, std::size_t index, DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return std::isnan(At<double>(data, index));
    case DType::kFloat32:
      return std::isnan(At<float>(data, index));
    case DType::kFloat16:
      return std::isnan(Decode(At<std::uint16_t>(data, index), kHalf));
    case DType::kBFloat16:
      return std::isnan(Decode(At<std::uint16_t>(data, index), kBrain));
    default:
      return false;
  }
}

/// The same bits, except that any NaN is as good as any other. Says where the first difference is.
::testing::AssertionResult SameBits(std::span<const std::byte> got, const Buffer& wanted,
                                    DType dtype) {
  const std::size_t size = SizeOf(dtype);
  if (std::equal(got.begin(), got.end(), wanted.begin(), wanted.end())) {
    return ::testing::AssertionSuccess();
  }
  for (std::size_t i = 0; i < wanted.size() / size; ++i) {
    if (std::memcmp(got.data() + i * size, wanted.data() + i * size, size) == 0) continue;
    if (IsNaN(got.data(), i, dtype) && IsNaN(wanted.data(), i, dtype)) continue;
    auto failure = ::testing::AssertionFailure() << "element " << i << ": got 0x" << std::hex;
    for (std::size_t b = size; b-- > 0;) failure << static_cast<int>(got[i * size + b]) << ' ';
    failure << "wanted 0x";
    for (std::size_t b = size; b-- > 0;) failure << static_cast<int>(wanted[i * size + b]) << ' ';
    return failure;
  }
  return ::testing::AssertionSuccess();
}

std::uint16_t RandomSmallFloat(DType dtype, Random& random) {
  const double value = std::normal_distribution<double>(0, 2)(random);
  return Encode(value, dtype == DType::kFloat16 ? kHalf : kBrain);
}

/// Mostly moderate numbers; one element in eight has random bits: infinities, NaN, subnormals, any
/// bool.
Buffer RandomBuffer(DType dtype, std::size_t count, Random& random) {
  Buffer buffer(count * SizeOf(dtype));
  WithStorage(dtype, [&]<typename T>(T) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bits = random();
      T value;
      std::memcpy(&value, &bits, sizeof(T));
      const bool wild = random() % 8 == 0;
      if constexpr (std::is_floating_point_v<T>) {
        if (!wild) value = static_cast<T>(std::normal_distribution<double>(0, 2)(random));
      } else if (SizeOf(dtype) == 2 && dtype != DType::kInt16) {
        if (!wild) value = static_cast<T>(RandomSmallFloat(dtype, random));
      } else if (dtype == DType::kBool) {
        if (!wild) value = static_cast<T>(bits >> 63);
      }
      Put(buffer, i, value);
    }
  });
  return buffer;
}

/// Memory that ends where a range of `size` bytes ends, so that the address sanitizer sees every
/// step beyond.
class Misaligned {
 public:
  Misaligned(std::size_t offset, std::size_t size) : offset_(offset), memory_(offset + size) {}
  Misaligned(std::size_t offset, const Buffer& from) : Misaligned(offset, from.size()) {
    std::copy(from.begin(), from.end(), data());
  }
  std::byte* data() { return memory_.data() + offset_; }
  std::span<const std::byte> bytes() { return std::span(memory_).subspan(offset_); }

 private:
  std::size_t offset_;
  Buffer memory_;
};

/// Where sources and destinations lie.
struct Layout {
  std::size_t in_place;     ///< So many of the sources are destinations as well.
  std::size_t extra;        ///< Destinations of their own.
  std::size_t offset;       ///< Of all buffers, in bytes.
  std::size_t offset_step;  ///< What is added from one buffer to the next.
};

void CheckLayout(const KernelTable& table, const Reduction& reduction,
                 const std::vector<Buffer>& srcs, const Buffer& wanted, const Layout& layout) {
  std::vector<Misaligned> buffers;
  const auto next_offset = [&] { return layout.offset + buffers.size() * layout.offset_step; };
  for (const Buffer& src : srcs) buffers.emplace_back(next_offset(), src);
  for (std::size_t i = 0; i < layout.extra; ++i) buffers.emplace_back(next_offset(), wanted.size());

  std::vector<const std::byte*> src_pointers;
  std::vector<std::byte*> dst_pointers;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (i < srcs.size()) src_pointers.push_back(buffers[i].data());
    if (i < layout.in_place || i >= srcs.size()) dst_pointers.push_back(buffers[i].data());
  }
  ReduceWith(table, reduction, src_pointers, dst_pointers, wanted.size() / SizeOf(reduction.dtype));

  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const bool is_dst = i < layout.in_place || i >= srcs.size();
    ASSERT_TRUE(is_dst ? SameBits(buffers[i].bytes(), wanted, reduction.dtype)
                       : SameBits(buffers[i].bytes(), srcs[i], DType::kUInt8))
        << table.isa << ", " << srcs.size() << " sources, buffer " << i << ", in place "
        << layout.in_place << ", offset " << layout.offset;
  }
}

void CheckAllLayouts(const Reduction& reduction, const std::vector<Buffer>& srcs,
                     std::size_t count) {
  const Buffer wanted = Reference(reduction, srcs, count);
  const std::size_t n = srcs.size();
  const std::size_t size = SizeOf(reduction.dtype);
  const Layout layouts[] = {{0, 1, 0, 0}, {n, 0, 0, 0}, {n, 0, size, 0},
                            {1, 0, 1, 1}, {0, 3, 3, 5}, {n / 2, 2, 0, size}};
  for (const KernelTable* table : RunnableKernels()) {
    for (const Layout& layout : layouts) {
      CheckLayout(*table, reduction, srcs, wanted, layout);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

struct Case {
  DType dtype;
  ReduceOp op;
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    for (int op = 0; op < kReduceOpCount; ++op) {
      const Case next = {static_cast<DType>(dtype), static_cast<ReduceOp>(op)};
      if (Supports(next.op, next.dtype)) cases.push_back(next);
    }
  }
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  return std::string(Name(info.param.dtype)) + "_" + Name(info.param.op);
}

class ReductionTest : public ::testing::TestWithParam<Case> {
 protected:
  void CheckAllCounts(std::size_t nsrc, std::size_t divisor) {
    const std::vector<double> all_factors = {0.5, -1.25, 3.0, 0.1, 1e-3, 7.0, -0.3, 1.0, 2.5};
    Reduction reduction = {.dtype = GetParam().dtype, .op = GetParam().op, .divisor = divisor};
    if (reduction.op == ReduceOp::kPreMulSum)
      reduction.factors = std::span(all_factors).first(nsrc);
    for (const std::size_t count : kCounts) {
      std::vector<Buffer> srcs;
      for (std::size_t s = 0; s < nsrc; ++s) {
        srcs.push_back(RandomBuffer(reduction.dtype, count, random_));
      }
      CheckAllLayouts(reduction, srcs, count);
      if (HasFatalFailure()) FAIL() << "count " << count << ", divisor " << divisor;
    }
  }

  Random random_{42};
};

TEST_P(ReductionTest, GivesTheBitsOfTheDefinitionOnEveryInstructionSet) {
  for (std::size_t nsrc = 1; nsrc <= kMostSources; ++nsrc) {
    ASSERT_NO_FATAL_FAILURE(CheckAllCounts(nsrc, nsrc));
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, ReductionTest, ::testing::ValuesIn(AllCases()), CaseName);

class AverageTest : public ReductionTest {};

TEST_P(AverageTest, DividesPartialSumsByMoreThanTheirNumberOrNotAtAll) {
  for (const std::size_t nsrc : {1, 2, 5}) {
    for (const std::size_t divisor : {0, 1, 7, 16, 1000}) {
      ASSERT_NO_FATAL_FAILURE(CheckAllCounts(nsrc, divisor));
    }
  }
}

std::vector<Case> AverageCases() {
  std::vector<Case> cases = AllCases();
  std::erase_if(cases, [](const Case& one) { return one.op != ReduceOp::kAverage; });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Kernels, AverageTest, ::testing::ValuesIn(AverageCases()), CaseName);

TEST(KernelsTest, ManySourcesAreReducedInTheirOrder) {
  Random random(7);
  for (const std::size_t nsrc : {10, 16, 33, 64}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt16}) {
      std::vector<Buffer> srcs;
      for (std::size_t s = 0; s < nsrc; ++s) srcs.push_back(RandomBuffer(dtype, 3001, random));
      ASSERT_NO_FATAL_FAILURE(CheckAllLayouts({.dtype = dtype}, srcs, 3001));
    }
  }
}

// --- Conversions, exhaustively. ---

class SmallFloatTest : public ::testing::TestWithParam<DType> {
 protected:
  Format format() const { return GetParam() == DType::kFloat16 ? kHalf : kBrain; }

  static Buffer AllValues() {
    Buffer values(65536 * 2);
    for (std::size_t i = 0; i < 65536; ++i) Put(values, i, static_cast<std::uint16_t>(i));
    return values;
  }

  Buffer Run(const KernelTable& table, const Reduction& reduction,
             const std::vector<Buffer>& srcs) {
    std::vector<const std::byte*> pointers;
    for (const Buffer& src : srcs) pointers.push_back(src.data());
    Buffer result(srcs[0].size());
    std::byte* const dst = result.data();
    ReduceWith(table, reduction, pointers, std::span(&dst, 1), result.size() / 2);
    return result;
  }
};

TEST_P(SmallFloatTest, EveryValueSurvivesTheWayThroughFloat32) {
  const double one = 1.0;
  const Reduction reduction = {
      .dtype = GetParam(), .op = ReduceOp::kPreMulSum, .factors = std::span(&one, 1)};
  const int quiet = 1 << (format().mantissa_bits - 1);
  for (const KernelTable* table : RunnableKernels()) {
    const Buffer result = Run(*table, reduction, {AllValues()});
    for (std::size_t i = 0; i < 65536; ++i) {
      const bool is_nan = std::isnan(Decode(static_cast<std::uint16_t>(i), format()));
      ASSERT_EQ(At<std::uint16_t>(result.data(), i), is_nan ? i | quiet : i) << table->isa;
    }
  }
}

TEST_P(SmallFloatTest, SumsOfEveryValueAreRoundedToNearestEven) {
  // The least subnormal, halves of steps around 1 and the greatest number, and values that cancel.
  const double others[] = {std::ldexp(1, -24),
                           std::ldexp(1, -133),
                           0x1p-14,
                           -0x1p-11,
                           0x1p-8,
                           1.0 / 3,
                           -1.0,
                           1.5,
                           2048,
                           -65504,
                           0x1.fep127,
                           -0x1p-126,
                           65536.0,
                           0x1p-15};
  for (const double other : others) {
    Buffer constant(65536 * 2);
    for (std::size_t i = 0; i < 65536; ++i) Put(constant, i, Encode(other, format()));
    const Reduction reduction = {.dtype = GetParam()};
    const Buffer wanted = Reference(reduction, {AllValues(), constant}, 65536);
    for (const KernelTable* table : RunnableKernels()) {
      ASSERT_TRUE(SameBits(Run(*table, reduction, {AllValues(), constant}), wanted, GetParam()))
          << table->isa << ", other " << other;
    }
  }
}

TEST_P(SmallFloatTest, ProductsOfEveryValueAreRoundedToNearestEven) {
  for (const double factor : {0x1p-10, 1.0 / 3, 0x1.8p-16, 0x1.4p+3, -0x1.002p0}) {
    const Reduction reduction = {
        .dtype = GetParam(), .op = ReduceOp::kPreMulSum, .factors = std::span(&factor, 1)};
    const Buffer wanted = Reference(reduction, {AllValues()}, 65536);
    for (const KernelTable* table : RunnableKernels()) {
      ASSERT_TRUE(SameBits(Run(*table, reduction, {AllValues()}), wanted, GetParam()))
          << table->isa << ", factor " << factor;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, SmallFloatTest,
                         ::testing::Values(DType::kFloat16, DType::kBFloat16),
                         [](const auto& one) { return std::string(Name(one.param)); });

TEST(BFloat16WireTest, PackingRoundsToNearestEvenAndKeepsNaN) {
  std::vector<float> from;
  for (std::uint32_t upper = 0; upper < 65536; ++upper) {
    for (const std::uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      from.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  for (const KernelTable* table : RunnableKernels()) {
    std::vector<std::uint16_t> to(from.size());
    table->pack_bfloat16(from.data(), to.data(), from.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      const std::uint16_t wanted = Encode(double{from[i]}, kBrain);
      if (std::isnan(from[i]) && std::isnan(Decode(to[i], kBrain))) continue;
      ASSERT_EQ(to[i], wanted) << table->isa << ", from " << from[i];
    }
  }
}

TEST(BFloat16WireTest, UnpackingIsExact) {
  std::vector<std::uint16_t> from(65536);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint16_t>(i);
  for (const KernelTable* table : RunnableKernels()) {
    std::vector<float> to(from.size());
    table->unpack_bfloat16(from.data(), to.data(), from.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(to[i]), i << 16) << table->isa;
    }
  }
}

TEST(BFloat16WireTest, PackingAndUnpackingWriteExactlyTheirCount) {
  for (const KernelTable* table : RunnableKernels()) {
    for (std::size_t count = 0; count < 200; ++count) {
      const std::vector<float> from(count, 1.5f);
      std::vector<std::uint16_t> packed(count + 1, 7);
      std::vector<float> unpacked(count + 1, 7.0f);
      table->pack_bfloat16(from.data(), packed.data(), count);
      table->unpack_bfloat16(packed.data(), unpacked.data(), count);
      EXPECT_EQ(packed.back(), 7);
      EXPECT_EQ(unpacked.back(), 7.0f);
      EXPECT_TRUE(std::equal(from.begin(), from.end(), unpacked.begin()));
    }
  }
}

// --- The choice of an instruction set, and errors. ---

template <typename Call>
std::string MessageOfInvalidArgument(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(KernelChoiceTest, TheBestIsChosenUnlessAnotherIsAskedFor) {
  EXPECT_EQ(&ChooseKernels(nullptr), RunnableKernels().back());
  EXPECT_EQ(&ChooseKernels(""), RunnableKernels().back());
  for (const KernelTable* table : RunnableKernels()) EXPECT_EQ(&ChooseKernels(table->isa), table);
}

TEST(KernelChoiceTest, AnUnknownNameListsTheKnownOnes) {
  const std::string message = MessageOfInvalidArgument([] { ChooseKernels("sse9"); });
  EXPECT_THAT(message, HasSubstr("sse9"));
  for (const KernelTable* table : RunnableKernels()) EXPECT_THAT(message, HasSubstr(table->isa));
}

TEST(KernelChoiceTest, TheSetInUseIsOneThatRunsHere) {
  EXPECT_NO_THROW(ChooseKernels(KernelIsa()));
}

TEST(KernelChoiceTest, EveryTableHasExactlyTheSupportedKernels) {
  for (const KernelTable* table : RunnableKernels()) {
    for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
      for (int op = 0; op < kReduceOpCount; ++op) {
        EXPECT_EQ(table->reduce[dtype][op] != nullptr,
                  Supports(static_cast<ReduceOp>(op), static_cast<DType>(dtype)));
      }
    }
  }
}

TEST(KernelErrorTest, WhatCannotBeReducedIsRefusedWithAReason) {
  float value = 1;
  const auto* src = reinterpret_cast<const std::byte*>(&value);
  auto* dst = reinterpret_cast<std::byte*>(&value);
  const auto reduce = [&](const Reduction& reduction, std::size_t nsrc) {
    return MessageOfInvalidArgument(
        [&] { Reduce(reduction, std::span(&src, nsrc), std::span(&dst, 1), 1); });
  };
  EXPECT_THAT(reduce({.op = ReduceOp::kBitOr}, 1), HasSubstr("bitor is not defined for float32"));
  EXPECT_THAT(reduce({.op = ReduceOp::kPreMulSum}, 1), HasSubstr("0 factors for 1 sources"));
  EXPECT_THAT(reduce({}, 0), HasSubstr("0 sources"));
}

}  // namespace
}  // namespace orca::comm
