// What must hold of every tensor that a parser accepts.
#pragma once

#include <cstddef>
#include <span>

#include "input.h"
#include "orca/io/tensor.h"

namespace orca::io {

/// Its data have the size that its shape says, and every byte can be read.
inline void RequireSound(const Tensor& tensor) {
  const auto bytes = ByteSize(tensor.spec.type, tensor.spec.shape);
  Require(bytes && *bytes == tensor.data.size());
  unsigned sum = 0;
  for (const std::byte value : tensor.data) sum += std::to_integer<unsigned>(value);
  Require(sum <= 255U * tensor.data.size());
}

inline bool LiesIn(const Tensor& tensor, std::span<const std::byte> bytes) {
  return tensor.data.empty() ||
         (tensor.data.data() >= bytes.data() &&
          tensor.data.data() + tensor.data.size() <= bytes.data() + bytes.size());
}

}  // namespace orca::io
