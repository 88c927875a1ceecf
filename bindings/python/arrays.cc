#include "arrays.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "orca/core/error.h"

namespace nb = nanobind;

namespace orca::bindings {
namespace {

using TypeCode = nb::dlpack::dtype_code;

struct Known {
  TypeCode code;
  std::uint8_t bits;
  DType dtype;
};
constexpr std::array<Known, kDTypeCount> kKnown = {{{TypeCode::Float, 64, DType::kFloat64},
                                                    {TypeCode::Float, 32, DType::kFloat32},
                                                    {TypeCode::Float, 16, DType::kFloat16},
                                                    {TypeCode::Bfloat, 16, DType::kBFloat16},
                                                    {TypeCode::Int, 8, DType::kInt8},
                                                    {TypeCode::Int, 16, DType::kInt16},
                                                    {TypeCode::Int, 32, DType::kInt32},
                                                    {TypeCode::Int, 64, DType::kInt64},
                                                    {TypeCode::UInt, 8, DType::kUInt8},
                                                    {TypeCode::Bool, 8, DType::kBool}}};

template <typename Array>
void CheckContiguous(const Array& array) {
  std::int64_t expected = 1;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != expected && array.size() != 0) {
      throw Error(Code::kInvalidArgument,
                  "the array is not contiguous; pass numpy.ascontiguousarray(array)");
    }
    expected *= static_cast<std::int64_t>(array.shape(i));
  }
  if (array.device_type() != nb::device::cpu::value) {
    throw Error(Code::kInvalidArgument, "the array is not in the memory of the CPU; copy it there");
  }
}

}  // namespace

std::optional<DType> EngineType(nb::dlpack::dtype type) {
  const auto found = std::ranges::find_if(kKnown, [type](const Known& known) {
    return known.code == static_cast<TypeCode>(type.code) && known.bits == type.bits &&
           type.lanes == 1;
  });
  return found == kKnown.end() ? std::nullopt : std::optional(found->dtype);
}

nb::dlpack::dtype ArrayType(DType dtype) {
  const Known& known = kKnown[static_cast<std::size_t>(dtype)];
  return {static_cast<std::uint8_t>(known.code), known.bits, 1};
}

std::span<const std::byte> AsBytes(const Input& array) {
  CheckContiguous(array);
  return {static_cast<const std::byte*>(array.data()), array.nbytes()};
}

std::span<std::byte> AsBytes(const Output& array) {
  CheckContiguous(array);
  return {static_cast<std::byte*>(array.data()), array.nbytes()};
}

}  // namespace orca::bindings
