// Tensors of torch in the words of the engine.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "orca/core/dtype.h"
#include "orca/io/tensor.h"

namespace orca::nn {

/// Throw kInvalidArgument for a type that the other side does not have.
io::TensorType TypeOf(const torch::Tensor& tensor);
DType DTypeOf(const torch::Tensor& tensor);
torch::ScalarType ScalarTypeOf(io::TensorType type);

/// The elements, which must lie behind each other.
std::span<const std::byte> BytesOf(const torch::Tensor& tensor);

/// A tensor in memory that `owner` keeps.
torch::Tensor View(std::span<const std::byte> bytes, io::TensorType type,
                   std::span<const std::int64_t> shape, std::shared_ptr<const void> owner);

}  // namespace orca::nn
