#include "orca/nn/estimator.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <set>
#include <span>

#include "nn/commits.h"
#include "nn/tasks.h"
#include "nn/tensors.h"
#include "nn/training_state.h"
#include "orca/core/log.h"
#include "orca/io/checkpoint_store.h"
#include "orca/io/event_file.h"
#include "orca/io/torch_file.h"

namespace orca::nn {
namespace {

using torch::Tensor;

Error Invalid(const std::string& text) { return {Code::kInvalidArgument, text}; }

std::vector<std::uint8_t> Words(const Json& call) { return Json::to_msgpack(call); }

// A value of torch.save as the tree of a bundle; see TrainingState.
Json TreeOf(const io::TorchFile& file, const io::TorchValue& value, std::vector<Tensor>& tensors) {
  using Kind = io::TorchValue::Kind;
  const auto items = [&] {
    Json::array_t made;
    for (const io::TorchValue& item : value.items) made.push_back(TreeOf(file, item, tensors));
    return made;
  };
  switch (value.kind) {
    case Kind::kNone:
      return {{"value", nullptr}};
    case Kind::kBool:
      return {{"value", value.flag}};
    case Kind::kInt:
      return {{"value", value.whole}};
    case Kind::kFloat:
      return {{"value", value.number}};
    case Kind::kText:
      return {{"value", value.text}};
    case Kind::kTensor:
      tensors.push_back(
          View(value.tensor.data, value.tensor.spec.type, value.tensor.spec.shape, file.owner));
      return {{"tensor", std::to_string(tensors.size() - 1)}};
    case Kind::kList:
      return {{"list", items()}};
    case Kind::kTuple:
      return {{"tuple", items()}};
    case Kind::kDict: {
      const Json::array_t flat = items();
      Json::array_t pairs;
      for (std::size_t i = 0; i + 1 < flat.size(); i += 2)
        pairs.push_back(Json::array({flat[i], flat[i + 1]}));
      return {{"dict", pairs}};
    }
  }
  return {{"value", nullptr}};
}

std::shared_ptr<const data::Shard> PutRows(const std::vector<Tensor>& features,
                                           const Tensor& target, Context& context) {
  std::vector<data::ColumnSpec> specs;
  std::vector<data::Column> columns;
  std::vector<Tensor> kept;
  const auto add = [&](const std::string& name, const Tensor& given) {
    kept.push_back(given.detach().to(torch::kCPU).contiguous());
    const auto sizes = given.sizes();
    specs.push_back(
        {.name = name, .dtype = DTypeOf(given), .row_shape = {sizes.begin() + 1, sizes.end()}});
    columns.push_back({.values = BytesOf(kept.back())});
  };
  for (std::size_t i = 0; i < features.size(); ++i)
    add(features.size() == 1 ? "x" : "x" + std::to_string(i), features[i]);
  if (target.defined()) add("y", target);
  return data::Shard::Put(context.shards(), specs, static_cast<std::uint64_t>(features[0].size(0)),
                          columns);
}

// The events of some epochs, the last of which ended with `step`.
void WriteScores(const std::string& log_dir, const std::vector<EpochStats>& stats,
                 std::uint64_t step) {
  io::EventWriter events(std::filesystem::path(log_dir) / "validation");
  for (const EpochStats& epoch : stats) step -= epoch.steps;
  for (const EpochStats& epoch : stats) {
    step += epoch.steps;
    const auto at = static_cast<std::int64_t>(step);
    events.AddScalar("val_loss", epoch.validation->loss, at);
    for (const auto& [name, value] : epoch.validation->metrics)
      if (value.size() == 1 && value[0].is_scalar)
        events.AddScalar(name, value[0].values.at(0), at);
  }
  events.Sync();
}

void CheckRows(const Dataset& data, bool wants_target) {
  const auto& specs = data.shards().at(0)->specs();
  const bool has_target = std::ranges::any_of(specs, [](const auto& s) { return s.name == "y"; });
  if (wants_target && !has_target)
    throw Invalid("the data have no target; give one tensor more, or a column that is named 'y'");
  for (const auto& spec : specs)
    if (spec.kind != data::ColumnKind::kFixed)
      throw Invalid("column '" + spec.name + "' has texts or bytes; a model takes numbers");
}

// What the workers of a Fit leave for those who come after them, as long as it lasts.
class Basket {
 public:
  explicit Basket(Context& context) : context_(context), number_(context.NewBasket()) {}
  Basket(const Basket&) = delete;
  Basket& operator=(const Basket&) = delete;
  ~Basket() {
    try {
      context_.EmptyBasket(number_, {});
    } catch (const Error& error) {  // A context that has stopped has emptied it.
      Log(LogLevel::kDebug, error.what());
    }
  }
  std::uint64_t number() const { return number_; }

 private:
  Context& context_;
  std::uint64_t number_;
};

}  // namespace

// --- data

Tensor ToTorch(const io::FileTensor& file) {
  return View(file.tensor.data, file.tensor.spec.type, file.tensor.spec.shape, file.owner);
}

Dataset::Dataset(Tensor features, Tensor target)
    : Dataset(std::vector<Tensor>{std::move(features)}, std::move(target)) {}

Dataset::Dataset(std::vector<Tensor> features, Tensor target)
    : features_(std::move(features)), target_(std::move(target)) {
  if (features_.empty()) throw Invalid("a dataset has no features; give one tensor or more");
  std::vector<Tensor> all = features_;
  if (target_.defined()) all.push_back(target_);
  for (const Tensor& tensor : all) {
    if (!tensor.defined() || tensor.dim() == 0)
      throw Invalid("a tensor of the data has no rows: its first dimension is missing");
    if (tensor.size(0) != features_[0].size(0))
      throw Invalid("tensors of the data have " + std::to_string(features_[0].size(0)) + " and " +
                    std::to_string(tensor.size(0)) + " rows; give as many of each");
  }
}

Dataset::Dataset(std::vector<std::shared_ptr<const data::Shard>> shards)
    : shards_(std::move(shards)) {
  if (shards_.empty()) throw Invalid("a dataset has no shards; give one or more");
}

Dataset Dataset::In(Context& context) const {
  if (!shards_.empty()) return *this;
  return Dataset({PutRows(features_, target_, context)});
}

std::uint64_t Dataset::rows() const {
  if (shards_.empty()) return static_cast<std::uint64_t>(features_[0].size(0));
  std::uint64_t rows = 0;
  for (const auto& shard : shards_) rows += shard->rows();
  return rows;
}

double Scores::at(const std::string& metric) const {
  const auto found = metrics.find(metric);
  if (found == metrics.end()) {
    std::string known;
    for (const auto& [name, value] : metrics) known += (known.empty() ? "" : ", ") + name;
    throw Invalid("there is no metric '" + metric + "'; there are: " + known);
  }
  if (found->second.size() != 1 || !found->second[0].is_scalar)
    throw Invalid("metric '" + metric + "' is not one number; see Scores::metrics");
  return found->second[0].values.at(0);
}

// --- the Estimator

struct Estimator::State {
  Context& context;
  EstimatorOptions options;
  SharedShard shard;  // a TrainingState

  TrainingState Read() const { return TrainingState::FromBundle(Bundle::Open(shard)); }
  /// Checks that the weights are of this model; `from` names where they come from.
  void Take(const TrainingState& state, const std::string& from) {
    const Model model = options.model();
    LoadTensors(model.module(), state.model, from);
    TrainingState taken = state;
    taken.model = TensorsOf(model.module());
    Write(taken);
  }
  void Write(const TrainingState& state) { shard = state.ToBundle().Put(context.shards()); }
  RunOptions Run(OnFailure on_failure = OnFailure::kRestart, int max_restarts = 3) const {
    return {.workers = options.workers,
            .threads = options.threads,
            .on_failure = on_failure,
            .max_restarts = max_restarts,
            .oversubscribe = options.oversubscribe};
  }
  Json Call(std::uint64_t batch_size) const {
    if (batch_size == 0) throw Invalid("batch_size is 0; a step needs a row or more");
    return {{"metrics", options.metrics},
            {"sums_loss", options.sums_loss},
            {"seed", options.seed},
            {"score_batch", batch_size},
            {"batch_size", batch_size}};
  }
};

Estimator::Estimator(Context& context, EstimatorOptions options)
    : state_(std::make_unique<State>(State{context, std::move(options), nullptr})) {
  if (state_->options.model == nullptr)
    throw Invalid("EstimatorOptions::model is null; give a function that makes the model");
  for (const std::string& name : state_->options.metrics) learn::Metric::Make(name);
  // The program's own random numbers go on as if nobody had drawn any.
  at::Generator random = at::globalContext().defaultGenerator(torch::kCPU);
  const Tensor before = random.get_state();
  torch::manual_seed(state_->options.seed);
  const Model model = state_->options.model();
  random.set_state(before);
  state_->Write({.model = TensorsOf(model.module())});
}

Estimator::~Estimator() = default;

std::vector<EpochStats> Estimator::Fit(const Dataset& data, const FitOptions& options) {
  const EstimatorOptions& own = state_->options;
  if (own.optimizer == nullptr || own.loss == nullptr)
    throw Invalid("Fit needs an optimizer and a loss; see EstimatorOptions");
  if (options.epochs < 1 && options.max_steps == 0)
    throw Invalid("epochs is " + std::to_string(options.epochs) + "; give 1 or more");
  if (options.checkpoint_trigger != nullptr && own.model_dir.empty())
    throw Invalid("a checkpoint_trigger needs EstimatorOptions::model_dir");
  const Dataset rows = data.In(state_->context);
  CheckRows(rows, true);
  std::optional<Dataset> validation;
  if (options.validation) {
    validation = options.validation->In(state_->context);
    CheckRows(*validation, true);
  }
  Json call = state_->Call(options.batch_size);
  call["epochs"] = options.epochs;
  call["shuffle"] = options.shuffle;
  call["max_steps"] = options.max_steps;
  call["on_nan"] = static_cast<int>(options.on_nan);
  call["clip_norm"] = options.clip_norm ? Json(*options.clip_norm) : Json();
  call["clip_value"] = options.clip_value ? Json(*options.clip_value) : Json();
  call["model_dir"] = own.model_dir;
  call["log_dir"] = own.log_dir;
  std::optional<Basket> basket;
  SharedBlockPointer ledger;
  // Its memory is that of one machine.
  if (state_->context.is_local() && options.on_failure != OnFailure::kRaise) {
    basket.emplace(state_->context);
    ledger = Ledger::Make(state_->context.shards(), std::max(own.workers, state_->context.cores()));
    call["ledger"] = ledger->hold()->id();
    call["basket"] = basket->number();
  }
  const auto results = orca::Run(
      state_->context, state_->Run(options.on_failure, options.max_restarts), FitTask, own.model,
      own.optimizer, own.loss, own.schedule, options.checkpoint_trigger, Words(call), state_->shard,
      rows.shards(), validation ? validation->shards() : std::vector<SharedShard>());

  std::vector<Bundle> bundles;
  for (const SharedShard& shard : results) bundles.push_back(Bundle::Open(shard));
  std::vector<EpochStats> stats;
  for (std::size_t i = 0; i < bundles[0].head.at("stats").size(); ++i) {
    const Json& first = bundles[0].head.at("stats")[i];
    const auto number = [](const Json& value) {
      return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
    };
    EpochStats& epoch = stats.emplace_back();
    epoch.epoch = first.at("epoch").get<std::uint64_t>();
    epoch.steps = first.at("steps").get<std::uint64_t>();
    epoch.train_loss = number(first.at("train_loss"));
    epoch.last_loss = number(first.at("last_loss"));
    epoch.skipped_steps = first.at("skipped").get<std::uint64_t>();
    std::vector<Json> scores;
    for (const Bundle& bundle : bundles) {
      const Json& theirs = bundle.head.at("stats")[i];
      epoch.rows += theirs.at("rows").get<std::uint64_t>();
      if (validation) scores.push_back(theirs.at("validation"));
    }
    if (validation) epoch.validation = JoinScores(scores, own.metrics, own.sums_loss);
  }
  Bundle after{.head = bundles[0].head.at("state"), .tensors = bundles[0].tensors};
  const TrainingState state = TrainingState::FromBundle(after);
  state_->Write(state);
  if (validation && !own.log_dir.empty()) {
    try {
      WriteScores(own.log_dir, stats, state.step);
    } catch (const Error& error) {
      Log(LogLevel::kWarning,
          std::string("the events of validations were not written: ") + error.what());
    }
  }
  return stats;
}

Scores Estimator::Evaluate(const Dataset& data, std::uint64_t batch_size) {
  const EstimatorOptions& own = state_->options;
  const Dataset rows = data.In(state_->context);
  CheckRows(rows, true);
  const auto results = orca::Run(state_->context, state_->Run(), EvaluateTask, own.model, own.loss,
                                 Words(state_->Call(batch_size)), state_->shard, rows.shards());
  std::vector<Json> parts;
  for (const SharedShard& shard : results) parts.push_back(Bundle::Open(shard).head);
  return JoinScores(parts, own.metrics, own.sums_loss);
}

Tensor Estimator::Predict(const Dataset& data, std::uint64_t batch_size) {
  const Dataset rows = data.In(state_->context);
  CheckRows(rows, false);
  const auto results = orca::Run(state_->context, state_->Run(), PredictTask, state_->options.model,
                                 Words(state_->Call(batch_size)), state_->shard, rows.shards());
  std::vector<Tensor> parts;
  for (const SharedShard& shard : results)
    for (Tensor& part : Bundle::Open(shard).tensors) parts.push_back(std::move(part));
  return parts.empty() ? torch::empty({0}) : torch::cat(parts);
}

Model Estimator::model() const {
  Model model = state_->options.model();
  LoadTensors(model.module(), state_->Read().model, "the Estimator's state");
  model.module().eval();
  return model;
}

std::vector<std::pair<std::string, Tensor>> Estimator::weights() const {
  return state_->Read().Copy().model;
}

void Estimator::Save(const std::string& path) const {
  io::TorchValue file = io::TorchValue::Dict();
  const TrainingState state = state_->Read();
  for (const auto& [name, tensor] : state.model)
    file.Add(name, io::TorchValue::Of(
                       {.spec = {.name = {}, .type = TypeOf(tensor), .shape = tensor.sizes().vec()},
                        .data = BytesOf(tensor)}));
  io::WriteTorchFile(io::Path(path), file);
}

void Estimator::Load(const std::string& path) {
  const io::TorchFile file = io::ReadTorchFile(io::Path(path));
  Bundle bundle;
  bundle.head = TreeOf(file, file.value, bundle.tensors);
  state_->Take(TrainingState::FromBundle(bundle), path);
}

void Estimator::SaveCheckpoint(const std::string& folder) const {
  io::CheckpointStore(io::Path(folder)).Save(state_->Read().ToCheckpoint());
}

void Estimator::LoadCheckpoint(const std::string& folder, std::optional<std::uint64_t> iteration) {
  const std::filesystem::path root(folder);
  std::optional<io::Checkpoint> found;
  if (std::filesystem::exists(root / "manifest.json")) {
    found = io::Checkpoint::Open(root);
    if (iteration && found->progress().iteration != *iteration) found.reset();
  } else {
    // A training's folder is named by its time: the newest is the last.
    std::set<std::filesystem::path, std::greater<>> folders;
    if (std::filesystem::is_directory(root))
      for (const auto& entry : std::filesystem::recursive_directory_iterator(root))
        if (entry.is_directory() && entry.path().filename().string().starts_with("model."))
          folders.insert(entry.path().parent_path());
    for (const auto& each : folders) {
      const io::CheckpointStore store(each);
      if (!iteration) {
        found = store.Latest();
      } else if (std::ranges::count(store.List(), *iteration) > 0) {
        found = store.Open(*iteration);
      }
      if (found) break;
    }
  }
  if (!found)
    throw Error(Code::kFailedPrecondition,
                "there is no checkpoint" +
                    (iteration ? " of iteration " + std::to_string(*iteration) : std::string()) +
                    " below " + folder + "; give a folder that Fit or SaveCheckpoint wrote to");
  state_->Take(TrainingState::FromCheckpoint(*found), "checkpoint " + found->folder().string());
}

}  // namespace orca::nn
