// How tensors lie in a safetensors file.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "orca/io/safetensors.h"

namespace orca::io {

struct SafetensorsLayout {
  std::string head;                  ///< Length and header: what comes before the data.
  std::vector<const Tensor*> order;  ///< The data follow each other in this order.
};

/// Throws kInvalidArgument as WriteSafetensors does.
SafetensorsLayout LayOutSafetensors(std::span<const Tensor> tensors, const Metadata& metadata);

}  // namespace orca::io
