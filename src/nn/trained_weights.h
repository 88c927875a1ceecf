// A worker's part in the weights that all workers train.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nn/commits.h"
#include "nn/optimizer_codec.h"
#include "nn/training_state.h"
#include "orca/comm/communicator.h"
#include "orca/data/shared_block.h"
#include "orca/learn/gradient_exchange.h"
#include "orca/learn/redo_log.h"
#include "orca/learn/undo_log.h"
#include "orca/learn/update.h"

namespace orca::nn {

/// What decides over a step when all workers have said what they have.
struct StepPolicy {
  learn::LossKind kind = learn::LossKind::kMean;
  /// Whether the weights are updated; may throw, on all workers alike.
  std::function<bool(const learn::StepSum&)> goes_on;
  std::optional<double> clip_norm;
  std::optional<std::pair<double, double>> clip_value;
};

/// The parameters of a module, its optimizer, and the exchange of gradients with the other workers.
///
/// With an optimizer that treats every element by itself, and all workers on one machine, there is
/// one copy of the weights and of the optimizer's state; each worker's optimizer updates a slice of
/// it. Otherwise each worker has a copy of its own, and all make the same update. One thread.
class TrainedWeights {
 public:
  /// `module` has its weights already; those of rank 0 count, or those of `left`, if a Fit was
  /// interrupted. `state` is what the optimizer knows from before. All workers make one together.
  TrainedWeights(torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                 const OptimizerState& state, const Interrupted* left = nullptr);
  ~TrainedWeights();

  /// Why weights are shared, or not, in a few words.
  const std::string& way() const { return way_; }
  const std::vector<std::string>& names() const { return names_; }

  /// Joins the gradients of the module's parameters and updates the weights. `again` computes loss
  /// and gradients of this worker's batch once more, for optimizers that want that.
  learn::StepSum Step(const learn::StepPart& part, const StepPolicy& policy,
                      const std::function<learn::StepPart()>& again);

  /// What the optimizer knows, as if it had the parameters themselves. Views of shared memory,
  /// where there is some; all workers call it together.
  OptimizerState State();

  // --- for Commits

  /// Steps are committed there; null: nowhere.
  void set_commits(Commits* commits) { commits_ = commits; }
  /// Whether a step can be committed: all that it changes is in shared memory.
  bool CanCommit() const;
  /// Whether the engine makes the steps, which anybody can finish.
  bool is_fused() const { return redo_ != nullptr; }
  /// Whether some parameter was left alone in the last step.
  bool has_idle() const { return has_idle_; }
  /// Grows when the optimizer knows something of other parameters than before.
  std::uint64_t changes() const { return changes_; }
  /// The memory that steps change: the weights, and what the optimizer knows of them.
  std::vector<SharedBlockPointer> Regions() const;
  /// What this worker changes of it.
  std::vector<learn::UndoLog::Piece> Pieces() const;
  /// All that has to outlive the workers.
  std::vector<SharedBlockPointer> Blocks() const;
  /// Where everything is, and what the optimizer knows beside it; see Interrupted.
  Json Record();

 private:
  struct Slice {
    learn::FlatLayout::Run run;
    torch::Tensor flat;
    torch::Tensor gradient;
    std::vector<std::size_t> members;
  };
  using Banks = std::map<std::string, SharedBlockPointer>;

  bool Shares() const { return weights_ != nullptr; }
  void TakeOver(const OptimizerState& state);
  void Share();
  void Cut();
  void Follow(const std::vector<bool>& used);
  void AdoptMoments();
  void GatherCounters();
  torch::Tensor Flat(const data::SharedBlock& block, DType dtype, learn::FlatLayout::Range range);
  torch::Tensor Whole(const SharedBlockPointer& block, std::size_t parameter) const;
  void Collect();
  bool CanFuse() const;
  void Fuse();
  void EndFusing();
  std::vector<std::string> StateKeys(int group) const;
  learn::UpdateRule NextRule(const Slice& slice);
  void UpdateByEngine(const learn::StepSum& sum, const StepPolicy& policy);
  void UpdateByTorch(const learn::StepSum& sum, const StepPolicy& policy, bool all_used);
  void SpreadGradients(const learn::StepSum& sum);
  void Clip(const StepPolicy& policy, std::vector<torch::Tensor> gradients) const;
  void ClipOwn(const StepPolicy& policy) const;
  torch::optim::OptimizerParamState* StateOf(const torch::Tensor& parameter) const;

  torch::optim::Optimizer& optimizer_;
  const OptimizerCodec* codec_;
  std::string way_;
  std::shared_ptr<comm::Communicator> group_;
  std::vector<torch::Tensor> parameters_;
  std::vector<std::string> names_;
  std::vector<int> group_of_;
  std::optional<learn::FlatLayout> layout_;
  SharedBlockPointer weights_;  // null: each worker has a copy
  SharedBlockPointer gradients_;
  std::vector<std::byte> own_gradients_;
  std::unique_ptr<learn::GradientExchange> exchange_;
  std::vector<learn::FlatLayout::Run> runs_;
  // Of shared weights:
  Banks banks_;                    // one value an element, by key
  std::vector<Moments> counters_;  // by parameter
  std::vector<std::vector<std::string>> keys_;
  std::vector<int> kinds_;  // what has another state is updated by itself
  std::vector<Slice> slices_;
  bool has_idle_ = false;
  SharedBlockPointer redo_block_;
  std::unique_ptr<learn::RedoLog> redo_;  // until some parameter has no gradient
  std::uint64_t updates_ = 0;
  std::uint64_t changes_ = 0;
  Commits* commits_ = nullptr;
  bool may_fuse_ = true;
  bool is_new_ = true;
};

}  // namespace orca::nn
