// PyTorch models that are written in C++, on the workers of a context.
//
//   int main(int argc, char** argv) {
//     orca::Init(argc, argv);
//     const auto context = orca::Context::Start({});
//     orca::nn::Estimator estimator(*context, {.model = MakeNet, .optimizer = MakeSgd,
//                                              .loss = CrossEntropy, .metrics = {"Accuracy"}});
//     estimator.Fit({images, labels}, {.epochs = 2, .batch_size = 64});
//     const auto scores = estimator.Evaluate({test_images, test_labels});
//   }
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "orca/core/error.h"
#include "orca/core/export.h"
#include "orca/data/shard.h"
#include "orca/io/tensor.h"
#include "orca/learn/metric.h"
#include "orca/learn/schedule.h"
#include "orca/learn/trigger.h"
#include "orca/runtime/program.h"

namespace orca::nn {

/// A module and its forward, whatever its type.
class ORCA_API Model {
 public:
  /// Of a holder (TORCH_MODULE) or a shared pointer to a module whose forward takes one to four
  /// tensors, or a vector of them, and returns one tensor.
  template <typename M>
  Model(M module)
      : module_(Pointer(module)),
        forward_([module](const std::vector<torch::Tensor>& inputs) mutable {
          return Call(module, inputs);
        }) {}

  torch::nn::Module& module() const { return *module_; }
  /// Throws kInvalidArgument when the module's forward does not take so many tensors.
  torch::Tensor Forward(const std::vector<torch::Tensor>& inputs) const { return forward_(inputs); }

 private:
  template <typename M>
  static std::shared_ptr<torch::nn::Module> Pointer(const M& module) {
    if constexpr (requires { module.ptr(); }) {
      return module.ptr();
    } else {
      return module;
    }
  }
  template <typename M>
  static torch::Tensor Call(M& module, const std::vector<torch::Tensor>& x) {
    auto& m = *module;
    if constexpr (requires { m.forward(x[0]); })
      if (x.size() == 1) return m.forward(x[0]);
    if constexpr (requires { m.forward(x[0], x[1]); })
      if (x.size() == 2) return m.forward(x[0], x[1]);
    if constexpr (requires { m.forward(x[0], x[1], x[2]); })
      if (x.size() == 3) return m.forward(x[0], x[1], x[2]);
    if constexpr (requires { m.forward(x[0], x[1], x[2], x[3]); })
      if (x.size() == 4) return m.forward(x[0], x[1], x[2], x[3]);
    if constexpr (requires { m.forward(x); }) return m.forward(x);
    throw Error(Code::kInvalidArgument,
                "the model's forward does not take " + std::to_string(x.size()) +
                    " tensors, which is what a batch has beside its target");
  }

  std::shared_ptr<torch::nn::Module> module_;
  std::function<torch::Tensor(const std::vector<torch::Tensor>&)> forward_;
};

/// What a loss function returns.
struct Loss {
  Loss(torch::Tensor mean) : value(std::move(mean)) {}
  Loss(torch::Tensor mean, double divisor) : value(std::move(mean)), weight(divisor) {}

  torch::Tensor value;
  /// What the mean was divided by, where that is not the rows of the batch: counted labels, sums
  /// of weights.
  std::optional<double> weight;
};

using OptimizerPointer = std::unique_ptr<torch::optim::Optimizer>;

/// What to train and how. The functions are plain ones, of this program or of a library that it
/// links (a lambda without captures is one), since each worker calls its own.
struct EstimatorOptions {
  Model (*model)() = nullptr;
  /// Makes the optimizer of what `model` made. Without it the Estimator evaluates and predicts.
  OptimizerPointer (*optimizer)(torch::nn::Module& model) = nullptr;
  Loss (*loss)(const torch::Tensor& output, const torch::Tensor& target) = nullptr;
  bool sums_loss = false;            ///< The loss is a sum over rows and not a mean.
  std::vector<std::string> metrics;  ///< See learn::Metric::Names.
  /// The learning rate of every step; without it the optimizer's own. Groups keep their ratios.
  std::shared_ptr<learn::Schedule> (*schedule)() = nullptr;
  int workers = 0;             ///< 0: one a core.
  int threads = 0;             ///< A worker's; 0: the cores divided among the workers.
  bool oversubscribe = false;  ///< Permits more than runtime::kWorkersPerCore workers per core.
  std::uint64_t seed = 0;      ///< Of the first weights, of the order of rows and of dropout.
  std::string model_dir;  ///< Where checkpoints go: <model_dir>/models/<time>/model.<iteration>.
  std::string log_dir;    ///< Where TensorBoard finds <log_dir>/train and <log_dir>/validation.
};

/// What was read from a file, without a copy.
ORCA_API torch::Tensor ToTorch(const io::FileTensor& file);

/// Rows of features, and what a model should make of them.
class ORCA_API Dataset {
 public:
  /// Tensors whose first dimension are the rows. Each call of an Estimator copies them into shared
  /// memory once; give shards where that is too often.
  Dataset(torch::Tensor features, torch::Tensor target = {});
  Dataset(std::vector<torch::Tensor> features, torch::Tensor target = {});
  /// Columns of the context's memory: the one that is named "y" is the target, all others are the
  /// features, in their order.
  Dataset(std::vector<std::shared_ptr<const data::Shard>> shards);

  /// The same rows in the memory of a context.
  Dataset In(Context& context) const;
  std::uint64_t rows() const;
  const std::vector<std::shared_ptr<const data::Shard>>& shards() const { return shards_; }

 private:
  std::vector<torch::Tensor> features_;
  torch::Tensor target_;
  std::vector<std::shared_ptr<const data::Shard>> shards_;
};

/// What to do with a step whose loss or gradient is not finite.
enum class OnNan { kRaise, kSkip, kIgnore };

struct FitOptions {
  int epochs = 1;
  std::uint64_t batch_size = 32;  ///< Rows of one step, of all workers together.
  bool shuffle = true;
  std::uint64_t max_steps =
      0;  ///< 0: as many as the epochs have. Else: so many, whatever `epochs`.
  OnNan on_nan = OnNan::kRaise;
  std::optional<double> clip_norm;                      ///< Of the joined gradient.
  std::optional<std::pair<double, double>> clip_value;  ///< Of each of its elements.
  std::optional<Dataset> validation;                    ///< Looked at after every epoch.
  /// When a checkpoint is written into model_dir; beside training.
  std::shared_ptr<learn::Trigger> (*checkpoint_trigger)() = nullptr;
  /// When a worker dies. With shared weights another takes its place (or the others go on without
  /// it), and no step that was committed is lost; with a copy a worker the Fit begins anew. What
  /// the model throws is always thrown, at once.
  OnFailure on_failure = OnFailure::kRestart;
  int max_restarts = 3;  ///< How often a worker may die.
};

/// How good a model is on some rows.
struct ORCA_API Scores {
  std::uint64_t rows = 0;
  double loss = 0.0;  ///< NaN without a loss function.
  std::map<std::string, std::vector<learn::MetricArray>> metrics;

  /// A metric of one number. Throws kInvalidArgument, with the known names, when there is none.
  double at(const std::string& metric) const;
};

struct EpochStats {
  std::uint64_t epoch = 0;  ///< From 1, over all calls of Fit.
  std::uint64_t rows = 0;
  std::uint64_t steps = 0;
  double train_loss = 0.0;  ///< The mean over the rows of the epoch.
  double last_loss = 0.0;   ///< Of its last step.
  std::uint64_t skipped_steps = 0;
  std::optional<Scores> validation;
};

/// Trains and uses a model on the workers of a context, as if one process had all rows.
///
/// Weights and optimizer state stay in the context's memory between calls; a call that throws
/// leaves them as they were before it. One thread at a time.
class ORCA_API Estimator {
 public:
  /// The context must outlive the Estimator. Makes the model once, here, for its first weights.
  /// Throws kInvalidArgument for what is missing or unknown.
  Estimator(Context& context, EstimatorOptions options);
  ~Estimator();

  /// Returns one entry an epoch. Throws RunError, with the rank and the cause, when a worker fails.
  std::vector<EpochStats> Fit(const Dataset& data, const FitOptions& options = {});
  /// Like Predict it begins anew when a worker dies, three times at most.
  Scores Evaluate(const Dataset& data, std::uint64_t batch_size = 256);
  /// What the model makes of each row, in their order.
  torch::Tensor Predict(const Dataset& data, std::uint64_t batch_size = 256);

  /// A model with the weights of now, in evaluation mode.
  Model model() const;
  /// Weights and buffers by name.
  std::vector<std::pair<std::string, torch::Tensor>> weights() const;

  /// Writes the weights as torch.save does: Python reads them with torch.load(weights_only=True).
  void Save(const std::string& path) const;
  /// Reads what Save wrote, or a Python Estimator's save, or torch.save of a state dict. With
  /// weights alone the optimizer begins anew.
  void Load(const std::string& path);
  /// A checkpoint folder in the format of the Python Estimators': weights, optimizer, progress.
  void SaveCheckpoint(const std::string& folder) const;
  /// The newest whole checkpoint below a folder, or the one of an iteration.
  void LoadCheckpoint(const std::string& folder,
                      std::optional<std::uint64_t> iteration = std::nullopt);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace orca::nn
