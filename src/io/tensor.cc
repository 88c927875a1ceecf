#include "orca/io/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "io/tensor_types.h"

namespace orca::io {
namespace {

// Half of what can be addressed.
constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

}  // namespace

std::size_t SizeOf(TensorType type) { return InfoOf(type).bytes; }
const char* Name(TensorType type) { return InfoOf(type).name; }

TensorType TypeNamed(std::string_view name) {
  const auto found = std::ranges::find(kTensorTypes, name, &TensorTypeInfo::name);
  if (found != kTensorTypes.end()) return found->type;
  std::string known;
  for (const TensorTypeInfo& info : kTensorTypes)
    known += fmt::format("{}{}", known.empty() ? "" : ", ", info.name);
  throw Error(Code::kInvalidArgument,
              fmt::format("'{}' is no type of tensors; known are {}", name, known));
}

std::optional<DType> ToDType(TensorType type) {
  if (static_cast<int>(type) >= kDTypeCount) return std::nullopt;
  return static_cast<DType>(type);
}

std::optional<std::uint64_t> ByteSize(TensorType type, std::span<const std::int64_t> shape) {
  std::uint64_t bytes = SizeOf(type);
  bool is_empty = false;
  // A dimension of 0 makes no other one harmless: readers multiply in their own order.
  for (const std::int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    is_empty = is_empty || extent == 0;
    const std::uint64_t factor = std::max<std::uint64_t>(static_cast<std::uint64_t>(extent), 1);
    if (bytes > kMaxBytes / factor) return std::nullopt;
    bytes *= factor;
  }
  return is_empty ? 0 : bytes;
}

std::string Describe(const TensorSpec& spec) {
  return fmt::format("{} ({})", Name(spec.type), fmt::join(spec.shape, ", "));
}

void CheckTensor(const Tensor& tensor) {
  const auto bytes = ByteSize(tensor.spec.type, tensor.spec.shape);
  if (!bytes) {
    throw Error(Code::kInvalidArgument,
                fmt::format("tensor '{}' has the shape ({}), which no memory holds",
                            tensor.spec.name, fmt::join(tensor.spec.shape, ", ")));
  }
  if (*bytes == tensor.data.size()) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("tensor '{}' is {}, which makes {} bytes, but comes with {}",
                          tensor.spec.name, Describe(tensor.spec), *bytes, tensor.data.size()));
}

void CheckSameTensors(std::span<const TensorSpec> expected, std::span<const Tensor> found,
                      const std::string& what) {
  std::map<std::string_view, const TensorSpec*> left;
  for (const Tensor& tensor : found) left.emplace(tensor.spec.name, &tensor.spec);
  for (const TensorSpec& spec : expected) {
    const auto here = left.find(spec.name);
    if (here == left.end()) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("{} is of another model: it has no tensor '{}', which the model has "
                              "as {}",
                              what, spec.name, Describe(spec)));
    }
    if (*here->second != spec) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("{} is of another model: its tensor '{}' is {}, the model's is {}",
                              what, spec.name, Describe(*here->second), Describe(spec)));
    }
    left.erase(here);
  }
  if (left.empty()) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("{} is of another model: it has the tensor '{}', {}, which the model "
                          "has not ({} such tensors)",
                          what, left.begin()->first, Describe(*left.begin()->second), left.size()));
}

void internal::CheckView(const Tensor& tensor, TensorType type) {
  if (tensor.spec.type != type) {
    throw Error(Code::kInvalidArgument,
                fmt::format("tensor '{}' has elements of {}, not of {}", tensor.spec.name,
                            Name(tensor.spec.type), Name(type)));
  }
  if (reinterpret_cast<std::uintptr_t>(tensor.data.data()) % SizeOf(type) == 0) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("tensor '{}' does not begin at a multiple of {} bytes; copy its data",
                          tensor.spec.name, SizeOf(type)));
}

}  // namespace orca::io
