// What a Fit has committed, in memory that outlives its workers; see docs/design/0007-commits.md.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "nn/training_state.h"
#include "orca/data/shared_block.h"
#include "orca/learn/commit_log.h"
#include "orca/learn/flat_layout.h"
#include "orca/learn/places.h"
#include "orca/learn/undo_log.h"

namespace orca::nn {

class TrainedWeights;

using SharedBlockPointer = std::shared_ptr<data::SharedBlock>;

/// New memory of zeroes that all workers map. They ask together.
SharedBlockPointer NewSharedBlock(std::size_t bytes);

/// Where the commits of one Fit are: a commit log, and behind it the workers' places.
class Ledger {
 public:
  /// In the driver, who holds the block, and what is in the basket.
  static SharedBlockPointer Make(const std::shared_ptr<data::ShardHome>& home, int workers);
  /// On a worker, by the numbers of the block and of the basket.
  Ledger(std::uint64_t block, std::uint64_t basket);

  learn::CommitLog log() const { return learn::CommitLog(block_->bytes()); }
  learn::Places places() const;
  std::uint64_t basket() const { return basket_; }
  /// When a call begins, on all workers together. Throws kFailedPrecondition when a worker has died
  /// twice in the same step: another would die of it, too.
  void Check() const;

 private:
  SharedBlockPointer block_;
  std::uint64_t basket_;
};

/// A Fit that was interrupted: where to go on.
struct Interrupted {
  learn::Commit commit;
  Json record;                                         ///< What changes seldom.
  std::map<std::uint64_t, SharedBlockPointer> blocks;  ///< That it names.
  std::uint64_t rows = 0;  ///< That this worker has trained on in the epoch.
  std::vector<std::byte> buffers;

  /// All workers ask together. The step in which somebody died is finished, or taken back.
  static std::optional<Interrupted> Find(const Ledger& ledger);

  /// What the optimizer knew; the tensors are views.
  OptimizerState optimizer() const;
  /// A parameter's value.
  torch::Tensor Weight(const learn::FlatLayout& layout, std::size_t parameter,
                       at::IntArrayRef shape) const;
  /// A module's buffers become what this worker had.
  void LoadBuffers(torch::nn::Module& module) const;
};

/// Commits the steps of one Fit, on a worker. One thread.
class Commits {
 public:
  /// What is in the record beside the weights.
  using Training = std::function<Json()>;

  /// `left` is where the Fit goes on, if it was interrupted. All must outlive the object.
  Commits(const Ledger& ledger, TrainedWeights& weights, torch::nn::Module& module,
          const Interrupted* left);

  /// Rows of this worker in this epoch, with those of the step that is made.
  std::uint64_t rows = 0;

  // --- in a step
  /// Before this worker makes a step: if it dies, it was that.
  void MarkStep(std::uint64_t step);
  /// Before all workers meet: what this one alone knows.
  void Note();
  /// Before this worker changes its share of the weights.
  void Save();
  /// Before an update that anybody can finish: the number of the commit that it becomes.
  std::uint64_t BeginUpdate();
  /// In a step whose update nobody could finish, on all workers: the last commit once more, from
  /// which steps are taken back.
  void Switch();

  // --- after a step
  /// Gets memory for the next steps if they need other, on all workers together. Says whether steps
  /// can be committed.
  bool Prepare();
  /// Says that all workers have finished a step. `settings` is what the record depends on.
  void Commit(learn::Commit at, std::vector<double> settings, const Training& training);

 private:
  void Renew();
  void WriteRecord();

  const Ledger& ledger_;
  learn::Places places_;
  TrainedWeights& weights_;
  std::vector<torch::Tensor> buffers_;
  SharedBlockPointer undo_block_;
  std::optional<learn::UndoLog> undo_;
  Json undo_shape_;
  std::size_t regions_ = 0;
  learn::Commit last_;  // its number is that of the last commit, on all workers
  std::uint64_t updates_ = 0;
  std::vector<double> settings_;
  Json training_;
  bool has_record_ = false;
  std::uint64_t changes_ = 0;              // of the weights, when it was written
  std::vector<SharedBlockPointer> pages_;  // for the record, in turns
  std::vector<SharedBlockPointer> kept_;   // what the last commit needs, until there is another
};

}  // namespace orca::nn
