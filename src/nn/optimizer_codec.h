// What torch's optimizers keep, in the words of Python's state dicts.
#pragma once

#include <torch/torch.h>

#include <memory>

#include "nn/training_state.h"

namespace orca::nn {

/// Of one class of optimizers, each of which treats every element by itself.
class OptimizerCodec {
 public:
  /// Nothing for an optimizer of another class; a class that is derived from one of torch's is
  /// another.
  static const OptimizerCodec* Of(const torch::optim::Optimizer& optimizer);

  virtual ~OptimizerCodec() = default;
  /// The tensors of the state itself, and copies of its counters.
  virtual Moments Export(const torch::optim::OptimizerParamState& state) const = 0;
  /// A state with these very tensors.
  virtual std::unique_ptr<torch::optim::OptimizerParamState> Import(
      const Moments& moments) const = 0;
  virtual Json Settings(const torch::optim::OptimizerOptions& options) const = 0;
  /// Takes over the settings that it knows.
  virtual void Apply(const Json& settings, torch::optim::OptimizerOptions& options) const = 0;
};

/// Whether a key of Moments is a counter, and not one value for each element.
inline bool IsCounter(const std::string& key) { return key == "step"; }

}  // namespace orca::nn
