#include "nn/tensors.h"

#include <array>
#include <string>
#include <utility>

#include "orca/core/error.h"

namespace orca::nn {
namespace {

constexpr std::array<std::pair<torch::ScalarType, io::TensorType>, 10> kTypes{{
    {torch::kFloat64, io::TensorType::kFloat64},
    {torch::kFloat32, io::TensorType::kFloat32},
    {torch::kFloat16, io::TensorType::kFloat16},
    {torch::kBFloat16, io::TensorType::kBFloat16},
    {torch::kInt8, io::TensorType::kInt8},
    {torch::kInt16, io::TensorType::kInt16},
    {torch::kInt32, io::TensorType::kInt32},
    {torch::kInt64, io::TensorType::kInt64},
    {torch::kUInt8, io::TensorType::kUInt8},
    {torch::kBool, io::TensorType::kBool},
}};

}  // namespace

io::TensorType TypeOf(const torch::Tensor& tensor) {
  for (const auto& [theirs, ours] : kTypes)
    if (theirs == tensor.scalar_type()) return ours;
  throw Error(Code::kInvalidArgument,
              std::string("tensors of ") + c10::toString(tensor.scalar_type()) +
                  " are not supported; convert them to a real number's type");
}

DType DTypeOf(const torch::Tensor& tensor) { return static_cast<DType>(TypeOf(tensor)); }

torch::ScalarType ScalarTypeOf(io::TensorType type) {
  for (const auto& [theirs, ours] : kTypes)
    if (ours == type) return theirs;
  throw Error(Code::kInvalidArgument,
              std::string("torch has no tensors of ") + io::Name(type) + " here");
}

std::span<const std::byte> BytesOf(const torch::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

torch::Tensor View(std::span<const std::byte> bytes, io::TensorType type,
                   std::span<const std::int64_t> shape, std::shared_ptr<const void> owner) {
  // torch has no tensors for reading only.
  return torch::from_blob(
      const_cast<std::byte*>(bytes.data()), torch::IntArrayRef(shape.data(), shape.size()),
      [owner = std::move(owner)](void*) {}, torch::TensorOptions(ScalarTypeOf(type)));
}

}  // namespace orca::nn
