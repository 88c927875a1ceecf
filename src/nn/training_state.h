// What training has made so far, and the forms it travels in.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "orca/data/shard.h"
#include "orca/io/checkpoint.h"

namespace orca::nn {

using Json = nlohmann::ordered_json;
using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;
/// What an optimizer knows of one parameter, as Python's state dicts have it: counters are tensors
/// of one element.
using Moments = std::map<std::string, torch::Tensor>;

/// A JSON value with tensors beside it, in the memory of a shard.
struct Bundle {
  Json head;
  std::vector<torch::Tensor> tensors;

  std::shared_ptr<const data::Shard> Put(const std::shared_ptr<data::ShardHome>& home) const;
  /// The tensors are views; the shard lives as long as one of them.
  static Bundle Open(const std::shared_ptr<const data::Shard>& shard);
};

struct OptimizerState {
  struct Group {
    Json settings;                        ///< As Python's param_groups have them.
    std::vector<std::size_t> parameters;  ///< Their numbers.
  };
  std::vector<Group> groups;
  std::vector<Moments> moments;  ///< One a parameter; empty: none yet.
  torch::Tensor archive;         ///< Of an optimizer that only torch can read; else undefined.
};

/// The same as what Python's Estimators keep, in memory and in checkpoints.
struct TrainingState {
  std::uint64_t epoch = 0;  ///< Epochs that are done.
  std::uint64_t step = 0;   ///< Steps that are done.
  NamedTensors model;
  OptimizerState optimizer;
  std::vector<double> schedule;
  double loss = std::numeric_limits<double>::quiet_NaN();   ///< Of the last step.
  double score = std::numeric_limits<double>::quiet_NaN();  ///< Of the last validation.

  /// Its tensors are those of the state.
  Bundle ToBundle() const;
  /// Also of weights alone, by name. Throws kInvalidArgument for what is no state of one model.
  static TrainingState FromBundle(const Bundle& bundle);

  /// Views of the state's tensors, which must live on; see CheckpointContent::owner.
  io::CheckpointContent ToCheckpoint() const;
  static TrainingState FromCheckpoint(const io::Checkpoint& checkpoint);

  /// The same with tensors of its own.
  TrainingState Copy() const;
};

/// Parameters and buffers by name.
NamedTensors TensorsOf(const torch::nn::Module& module);
/// Copies weights into a module. Throws kInvalidArgument at the first difference; `what` names
/// where the weights come from.
void LoadTensors(torch::nn::Module& module, const NamedTensors& weights, const std::string& what);

}  // namespace orca::nn
