#include "nn/tasks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "kernels.h"
#include "nn/commits.h"
#include "nn/tensors.h"
#include "nn/trained_weights.h"
#include "orca/core/error.h"
#include "orca/core/log.h"
#include "orca/data/array_store.h"
#include "orca/io/async_writer.h"
#include "orca/io/event_file.h"

namespace orca::nn {
namespace {

using learn::StepPart;
using learn::StepSum;
using torch::Tensor;
using Clock = std::chrono::steady_clock;
using MetricList = std::vector<std::unique_ptr<learn::Metric>>;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kKeptCheckpoints = 5;
constexpr std::chrono::seconds kFirstSign(1);
constexpr std::chrono::seconds kLastPause(10);
constexpr std::chrono::minutes kFlushTimeout(10);

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// --- rows

struct Sample {
  std::vector<Tensor> features;
  Tensor target;
  std::uint64_t rows = 0;
};

Sample ToSample(const std::shared_ptr<const data::Batch>& batch,
                const std::vector<data::ColumnSpec>& specs) {
  Sample sample;
  sample.rows = batch->rows;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    std::vector<std::int64_t> shape{static_cast<std::int64_t>(batch->rows)};
    shape.insert(shape.end(), specs[i].row_shape.begin(), specs[i].row_shape.end());
    Tensor tensor = View(batch->columns[i].values.first(batch->rows * specs[i].row_bytes()),
                         io::ToTensorType(specs[i].dtype), shape, batch);
    if (specs[i].name == "y") {
      sample.target = std::move(tensor);
    } else {
      sample.features.push_back(std::move(tensor));
    }
  }
  return sample;
}

std::unique_ptr<data::ArrayStore> StoreOf(const std::vector<SharedShard>& shards) {
  auto store = data::ArrayStore::Create(shards.at(0)->specs(), Shards());
  for (const SharedShard& shard : shards) store->Add(shard);
  return store;
}

// --- models

Model MakeModel(decltype(EstimatorOptions::model) factory, const NamedTensors& weights) {
  Model model = factory();
  LoadTensors(model.module(), weights, "the Estimator's state");
  return model;
}

// Parameters that are views of the state's memory, which nobody writes to.
Model MakeModelToUse(decltype(EstimatorOptions::model) factory, const TrainingState& state) {
  Model model = factory();
  model.module().eval();
  const torch::NoGradGuard no_grad;
  std::map<std::string, Tensor> weights(state.model.begin(), state.model.end());
  for (auto& [name, tensor] : TensorsOf(model.module())) Tensor(tensor).set_data(weights.at(name));
  return model;
}

void BeginTask() { torch::set_num_threads(Threads()); }

// --- scores

MetricList MakeMetrics(const Json& names) {
  MetricList metrics;
  for (const Json& name : names) metrics.push_back(learn::Metric::Make(name.get<std::string>()));
  return metrics;
}

void Update(learn::Metric& metric, Tensor output, Tensor target) {
  const auto plain = [](Tensor tensor) {
    if (tensor.scalar_type() == torch::kFloat16 || tensor.scalar_type() == torch::kBFloat16)
      tensor = tensor.to(torch::kFloat32);
    return tensor.detach().contiguous();
  };
  output = plain(output);
  target = plain(target);
  metric.Update({.dtype = DTypeOf(output), .shape = output.sizes(), .data = BytesOf(output)},
                {.dtype = DTypeOf(target), .shape = target.sizes(), .data = BytesOf(target)});
}

// What this worker has seen, for the driver to join.
Json Score(const Model& model, decltype(EstimatorOptions::loss) loss, const Json& call,
           const data::ArrayStore& rows) {
  const torch::NoGradGuard no_grad;
  const bool was_training = model.module().is_training();
  model.module().eval();
  const MetricList metrics = MakeMetrics(call.at("metrics"));
  double loss_sum = 0.0;
  double weight_sum = 0.0;
  std::uint64_t seen = 0;
  const bool sums = call.at("sums_loss").get<bool>();
  const auto loader = rows.Batches({.batch_size = call.at("score_batch").get<std::uint64_t>(),
                                    .shuffle = false,
                                    .rank = Rank(),
                                    .world_size = WorldSize()});
  while (const auto batch = loader->Next()) {
    if (batch->rows == 0) continue;
    const Sample sample = ToSample(batch, rows.columns());
    const Tensor output = model.Forward(sample.features);
    seen += sample.rows;
    if (loss != nullptr) {
      const Loss found = loss(output, sample.target);
      const double weight = found.weight.value_or(static_cast<double>(sample.rows));
      if (weight != 0.0) loss_sum += found.value.item<double>() * (sums ? 1.0 : weight);
      weight_sum += weight;
    }
    for (const auto& metric : metrics) Update(*metric, output, sample.target);
  }
  model.module().train(was_training);
  Json states = Json::array();
  for (const auto& metric : metrics) {
    const std::vector<std::byte> state = metric->State();
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(state.data());
    states.push_back(Json::binary(std::vector<std::uint8_t>(bytes, bytes + state.size())));
  }
  return {{"rows", seen}, {"loss", loss_sum}, {"weight", weight_sum}, {"metrics", states}};
}

// --- training

class Records {
 public:
  Records(const Json& call, std::shared_ptr<learn::Trigger> trigger)
      : trigger_(std::move(trigger)) {
    if (Rank() != 0) return;
    const auto log_dir = call.at("log_dir").get<std::string>();
    if (!log_dir.empty()) {
      train_ = std::make_unique<io::EventWriter>(std::filesystem::path(log_dir) / "train");
    }
    if (!trigger_) return;
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    localtime_r(&now, &parts);
    char stamp[32];
    std::strftime(stamp, sizeof stamp, "%Y-%m-%d_%H-%M-%S", &parts);
    const auto folder =
        std::filesystem::path(call.at("model_dir").get<std::string>()) / "models" / stamp;
    std::filesystem::create_directories(folder);
    writer_ = std::make_unique<io::AsyncWriter>(
        io::CheckpointStore(folder, {.keep_last = kKeptCheckpoints}));
  }

  void Step(std::uint64_t step, const StepSum& sum, double rate) {
    if (!train_) return;
    const auto now = Clock::now();
    const auto at = static_cast<std::int64_t>(step);
    train_->AddScalar("Loss", sum.loss, at);
    train_->AddScalar("LearningRate", rate, at);
    train_->AddScalar("Throughput",
                      static_cast<double>(sum.rows) / std::max(Seconds(now - since_), 1e-9), at);
    since_ = now;
  }

  // Tells the trigger where training is when it goes on: the next epoch is not its first.
  void Prime(const learn::TrainProgress& progress) {
    if (trigger_) trigger_->Fires(progress);
  }

  // All workers ask alike; `state` is asked for when the trigger fires, on all of them.
  template <typename StateOf>
  void Checkpoint(const learn::TrainProgress& progress, StateOf state) {
    if (!trigger_ || !trigger_->Fires(progress) || last_ == progress.iteration) return;
    last_ = progress.iteration;
    const TrainingState found = state();
    if (writer_) writer_->Submit(found.Copy().ToCheckpoint());
  }

  void Close() {
    if (train_) train_->Sync();
    if (!writer_) return;
    try {
      writer_->Flush(kFlushTimeout);
    } catch (const Error& error) {
      Log(LogLevel::kWarning, std::string("the last checkpoint was not written: ") + error.what());
    }
  }

 private:
  std::shared_ptr<learn::Trigger> trigger_;
  std::unique_ptr<io::EventWriter> train_;
  std::unique_ptr<io::AsyncWriter> writer_;
  std::int64_t last_ = -1;
  Clock::time_point since_ = Clock::now();
};

class Progress {
 public:
  Progress(std::uint64_t epoch, std::uint64_t epochs, std::uint64_t steps)
      : epoch_(epoch), epochs_(epochs), steps_(steps) {}

  void Step(std::uint64_t step, const StepSum& sum) {
    rows_ += sum.rows;
    const auto now = Clock::now();
    if (Rank() != 0 || now < next_) return;
    pause_ = std::min<Clock::duration>(pause_ * 2, kLastPause);
    next_ = now + pause_;
    const double seconds = Seconds(now - begin_);
    char line[160];
    std::snprintf(line, sizeof line,
                  "epoch %llu/%llu, step %llu/%llu, loss %.4g, %.0f rows/s, %.0f s left in it",
                  static_cast<unsigned long long>(epoch_), static_cast<unsigned long long>(epochs_),
                  static_cast<unsigned long long>(step), static_cast<unsigned long long>(steps_),
                  sum.loss, static_cast<double>(rows_) / seconds,
                  seconds * static_cast<double>(steps_ - step) / static_cast<double>(step));
    Log(LogLevel::kInfo, line);
  }

 private:
  std::uint64_t epoch_;
  std::uint64_t epochs_;
  std::uint64_t steps_;
  std::uint64_t rows_ = 0;
  Clock::time_point begin_ = Clock::now();
  Clock::duration pause_ = kFirstSign;
  Clock::time_point next_ = begin_ + kFirstSign;
};

// Running statistics become the mean over the workers, each weighed with its rows.
class Buffers {
 public:
  explicit Buffers(torch::nn::Module& module) : buffers_(module.buffers()) {
    for (const Tensor& buffer : buffers_) before_.push_back(buffer.detach().clone());
  }

  // What they were when the epoch began.
  Json Before() const {
    Json before = Json::array();
    for (const Tensor& buffer : before_) {
      const Tensor whole = buffer.contiguous();
      const auto bytes = BytesOf(whole);
      const auto* const first = reinterpret_cast<const std::uint8_t*>(bytes.data());
      before.push_back(Json::binary({first, first + bytes.size()}));
    }
    return before;
  }
  void SetBefore(const Json& before) {
    for (std::size_t i = 0; i < before_.size(); ++i) {
      before_[i] = torch::empty_like(before_[i], {}, torch::MemoryFormat::Contiguous);
      const auto& bytes = before.at(i).get_binary();
      if (!bytes.empty()) std::memcpy(before_[i].data_ptr(), bytes.data(), bytes.size());
    }
  }

  void Average(std::uint64_t rows) {
    if (WorldSize() == 1 || buffers_.empty()) return;
    const torch::NoGradGuard no_grad;
    std::vector<std::uint64_t> counts(static_cast<std::size_t>(WorldSize()));
    Group().AllGather(comm::AsBytes(std::span<const std::uint64_t>(&rows, 1)),
                      comm::AsBytes(counts), DType::kInt64);
    double total = 0.0;
    for (const std::uint64_t count : counts) total += static_cast<double>(count);
    const auto most = std::ranges::max_element(counts) - counts.begin();
    std::vector<std::uint8_t> changed;
    for (std::size_t i = 0; i < buffers_.size(); ++i)
      changed.push_back(torch::equal(buffers_[i], before_[i]) ? 0 : 1);
    Group().AllReduce(comm::AsBytes(changed), DType::kUInt8, comm::ReduceOp::kMax);
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      if (total == 0.0 || changed[i] == 0) continue;
      Tensor whole = buffers_[i].contiguous().clone();
      const std::span<std::byte> bytes{static_cast<std::byte*>(whole.data_ptr()), whole.nbytes()};
      if (buffers_[i].is_floating_point()) {
        if (rows == 0) {
          whole.zero_();
        } else {
          whole.mul_(static_cast<double>(rows) / total);
        }
        Group().AllReduce(bytes, DTypeOf(whole));
      } else {
        Group().Broadcast(bytes, DTypeOf(whole), static_cast<int>(most));
      }
      buffers_[i].copy_(whole);
    }
  }

 private:
  std::vector<Tensor> buffers_;
  std::vector<Tensor> before_;
};

// What every worker has, on all of them.
std::vector<Json> AllGatherJson(const Json& mine) {
  const std::vector<std::uint8_t> words = Json::to_msgpack(mine);
  const std::uint64_t size = words.size();
  const auto world = static_cast<std::size_t>(WorldSize());
  std::vector<std::uint64_t> sizes(world);
  Group().AllGather(comm::AsBytes(std::span<const std::uint64_t>(&size, 1)), comm::AsBytes(sizes),
                    DType::kInt64);
  std::vector<std::vector<std::uint8_t>> theirs(world);
  std::vector<comm::Bytes> outputs;
  for (std::size_t rank = 0; rank < world; ++rank) {
    theirs[rank].resize(sizes[rank]);
    outputs.push_back(comm::AsBytes(theirs[rank]));
  }
  Group().Run(comm::Collective::AllGather(comm::AsBytes(words), outputs, DType::kUInt8));
  std::vector<Json> found;
  for (const auto& each : theirs) found.push_back(Json::from_msgpack(each));
  return found;
}

std::vector<double> RatesOf(torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

// Far apart, whatever the seed.
constexpr std::uint64_t kStride = 0x9E3779B97F4A7C15;

// Random numbers of a step are the same whenever it is made, and others on every worker.
void SeedStep(std::uint64_t seed, std::uint64_t step) {
  const auto world = static_cast<std::uint64_t>(WorldSize());
  torch::manual_seed(seed + (step * world + static_cast<std::uint64_t>(Rank()) + 1) * kStride);
}

class Training {
 public:
  Training(Model model, torch::optim::Optimizer& optimizer, decltype(EstimatorOptions::loss) loss,
           std::shared_ptr<learn::Schedule> schedule, std::shared_ptr<learn::Trigger> trigger,
           const Json& call, TrainingState state, const Ledger* ledger,
           std::optional<Interrupted> left)
      : model_(std::move(model)),
        optimizer_(optimizer),
        loss_(loss),
        schedule_(std::move(schedule)),
        call_(call),
        state_(std::move(state)),
        base_rates_(RatesOf(optimizer)),
        left_(std::move(left)),
        weights_(model_.module(), optimizer, state_.optimizer, left_ ? &*left_ : nullptr),
        records_(call, std::move(trigger)),
        first_step_(state_.step) {
    if (schedule_ && !state_.schedule.empty()) schedule_->Restore(state_.schedule);
    policy_.kind =
        call.at("sums_loss").get<bool>() ? learn::LossKind::kSum : learn::LossKind::kMean;
    policy_.goes_on = [this](const StepSum& sum) { return GoesOn(sum); };
    if (!call.at("clip_norm").is_null()) policy_.clip_norm = call.at("clip_norm").get<double>();
    if (!call.at("clip_value").is_null())
      policy_.clip_value = call.at("clip_value").get<std::pair<double, double>>();
    if (ledger != nullptr) {
      commits_.emplace(*ledger, weights_, model_.module(), left_ ? &*left_ : nullptr);
      weights_.set_commits(&*commits_);
    }
    state_.model.clear();  // The memory of those who were here before.
    state_.optimizer = {};
    if (!left_) return;
    left_->LoadBuffers(model_.module());
    const Json& training = left_->record.at("training");
    first_step_ = training.at("first_step").get<std::uint64_t>();
    stats_ = training.at("stats");
    records_.Prime(At(state_.epoch + 1, state_.loss));
  }

  Json Fit(const data::ArrayStore& rows, const data::ArrayStore* validation) {
    const auto epochs = call_.at("epochs").get<std::uint64_t>();
    Announce(rows);
    for (std::uint64_t i = stats_.size(); i < epochs || max_steps() > 0; ++i) {
      const std::uint64_t before = left_ ? first_step_ : state_.step;
      Json mine = Epoch(rows, epochs);
      if (validation != nullptr) mine["validation"] = Score(model_, loss_, call_, *validation);
      const std::vector<Json> everybody = AllGatherJson(mine);
      if (validation != nullptr) {
        std::vector<Json> scores;
        for (const Json& each : everybody) scores.push_back(each.at("validation"));
        state_.score = FirstScore(scores);
      }
      stats_.push_back(everybody);
      records_.Checkpoint(At(state_.epoch + 2, state_.loss),
                          [&] { return State(state_.epoch + 1); });
      ++state_.epoch;
      if (IsOver() || (state_.step == before && max_steps() > 0)) break;
    }
    Json mine = Json::array();
    for (const Json& everybody : stats_) mine.push_back(OfThisWorker(everybody));
    return mine;
  }

  TrainingState State(std::uint64_t epoch) {
    TrainingState state = state_;
    state.epoch = epoch;
    state.model = TensorsOf(model_.module());
    state.optimizer = weights_.State();
    if (schedule_) state.schedule = schedule_->State();
    return state;
  }
  TrainingState State() { return State(state_.epoch); }
  void Close() { records_.Close(); }

 private:
  std::uint64_t max_steps() const { return call_.at("max_steps").get<std::uint64_t>(); }
  bool IsOver() const { return max_steps() > 0 && state_.step - first_step_ >= max_steps(); }
  // There may have been fewer workers.
  static Json OfThisWorker(const Json& everybody) {
    return everybody.at(std::min(static_cast<std::size_t>(Rank()), everybody.size() - 1));
  }
  double FirstScore(const std::vector<Json>& parts) const {
    const auto names = call_.at("metrics").get<std::vector<std::string>>();
    if (names.empty()) return kUnknown;
    const auto metrics = JoinScores(parts, names, policy_.kind == learn::LossKind::kSum).metrics;
    const auto& first = metrics.at(names[0]);
    return first.size() == 1 && first[0].is_scalar ? first[0].values.at(0) : kUnknown;
  }
  learn::TrainProgress At(std::uint64_t epoch, double loss) const {
    return {.epoch = static_cast<std::int64_t>(epoch),
            .iteration = static_cast<std::int64_t>(state_.step),
            .loss = loss,
            .score = state_.score};
  }

  Json Epoch(const data::ArrayStore& rows, std::uint64_t epochs) {
    model_.module().train();
    Buffers buffers(model_.module());
    const auto batch_size = call_.at("batch_size").get<std::uint64_t>();
    learn::Commit at = BeginEpoch(buffers);
    const auto loader = rows.Batches({.batch_size = batch_size,
                                      .shuffle = call_.at("shuffle").get<bool>(),
                                      .seed = call_.at("seed").get<std::uint64_t>(),
                                      .epoch = state_.epoch,
                                      .rank = Rank(),
                                      .world_size = WorldSize(),
                                      .start = std::min(at.index * batch_size, rows.rows())});
    const std::uint64_t steps = at.index + loader->steps();
    Progress progress(state_.epoch + 1, state_.epoch + epochs - stats_.size(), steps);
    if (at.is_pending != 0) {  // The last step was finished after a death.
      const bool is_last = at.index == steps;
      records_.Checkpoint(At(state_.epoch + 1, state_.loss),
                          [&] { return State(state_.epoch + (is_last ? 1 : 0)); });
    }
    while (!IsOver()) {
      const auto batch = loader->Next();
      if (!batch) break;
      Sample sample;
      if (batch->rows > 0) sample = ToSample(batch, rows.columns());
      SetRate();
      went_on_ = false;
      SeedStep(call_.at("seed").get<std::uint64_t>(), state_.step);
      mine_ += sample.rows;
      if (commits_) {
        commits_->MarkStep(state_.step + 1);
        commits_->rows = mine_;
      }
      const StepSum sum =
          weights_.Step(Backward(sample), policy_, [&] { return Backward(sample); });
      ++state_.step;
      ++at.index;
      if (went_on_) {
        at.loss_sum += sum.loss * static_cast<double>(sum.rows);
        at.loss_rows += sum.rows;
        state_.loss = sum.loss;
      } else {
        ++at.skipped;
      }
      const bool commits = commits_ && commits_->Prepare();
      records_.Step(state_.step, sum, optimizer_.param_groups()[0].options().get_lr());
      const bool is_last = at.index == steps;
      records_.Checkpoint(At(state_.epoch + 1, sum.loss),
                          [&] { return State(state_.epoch + (is_last ? 1 : 0)); });
      if (Rank() == 0) Report(state_.step, {{"loss", sum.loss}});
      progress.Step(at.index, sum);
      if (commits) Commit(at, buffers);
    }
    buffers.Average(mine_);
    return {{"epoch", state_.epoch + 1},
            {"rows", mine_},
            {"steps", at.index},
            {"train_loss",
             at.loss_rows == 0 ? kUnknown : at.loss_sum / static_cast<double>(at.loss_rows)},
            {"last_loss", state_.loss},
            {"skipped", at.skipped}};
  }

  // Where the epoch begins, or goes on.
  learn::Commit BeginEpoch(Buffers& buffers) {
    const std::optional<Interrupted> left = std::exchange(left_, std::nullopt);
    if (left && left->commit.index > 0) {
      buffers.SetBefore(left->record.at("training").at("before"));
      mine_ = left->rows;
      return left->commit;
    }
    mine_ = 0;
    if (commits_) {
      commits_->rows = 0;
      if (commits_->Prepare()) {
        commits_->Note();
        Group().Barrier();
        Commit({}, buffers);
      }
    }
    return {};
  }

  void Commit(learn::Commit at, const Buffers& buffers) {
    at.step = state_.step;
    at.epoch = state_.epoch;
    at.last_loss = state_.loss;
    at.is_pending = 0;
    std::vector<double> settings = RatesOf(optimizer_);
    settings.push_back(static_cast<double>(state_.epoch));
    const std::vector<double> schedule = schedule_ ? schedule_->State() : std::vector<double>();
    settings.insert(settings.end(), schedule.begin(), schedule.end());
    commits_->Commit(at, std::move(settings), [&] {
      return Json{{"kind", static_cast<int>(policy_.kind)},
                  {"first_step", first_step_},
                  {"stats", stats_},
                  {"score", state_.score},
                  {"schedule", schedule},
                  {"before", buffers.Before()}};
    });
  }

  StepPart Backward(const Sample& sample) {
    if (sample.rows == 0) return {};
    model_.module().zero_grad();
    const Tensor output = model_.Forward(sample.features);
    const Loss found = loss_(output, sample.target);
    if (found.value.numel() != 1)
      throw Error(Code::kInvalidArgument,
                  "the loss has " + std::to_string(found.value.numel()) +
                      " elements; return their mean (or sum, with sums_loss)");
    const double weight = found.weight.value_or(static_cast<double>(sample.rows));
    if (!std::isfinite(weight) || weight < 0.0)
      throw Error(Code::kInvalidArgument, "the weight of a loss is " + std::to_string(weight) +
                                              "; give what its mean was divided by, 0 or more");
    found.value.backward();
    return {.weight = weight, .loss = found.value.item<double>(), .rows = sample.rows};
  }

  void SetRate() {
    if (!schedule_) return;
    // The groups keep their ratios to the first one that learns.
    const auto first = std::ranges::find_if(base_rates_, [](double rate) { return rate != 0.0; });
    if (first == base_rates_.end()) return;
    const double rate =
        schedule_->Rate({.rate = *first}, {.iteration = static_cast<std::int64_t>(state_.step),
                                           .epoch = static_cast<std::int64_t>(state_.epoch + 1),
                                           .loss = state_.loss,
                                           .score = state_.score});
    auto& groups = optimizer_.param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i)
      groups[i].options().set_lr(rate * (base_rates_[i] / *first));
  }

  bool GoesOn(const StepSum& sum) {
    went_on_ = true;
    const auto on_nan = static_cast<OnNan>(call_.at("on_nan").get<int>());
    if ((sum.bad_loss < 0 && sum.bad_gradient < 0) || on_nan == OnNan::kIgnore) return true;
    if (on_nan == OnNan::kSkip) return went_on_ = false;
    const bool is_loss = sum.bad_loss >= 0;
    const std::string what =
        is_loss ? "loss is"
                : "gradient of '" + weights_.names().at(static_cast<std::size_t>(sum.bad_tensor)) +
                      "' is";
    throw Error(Code::kFailedPrecondition,
                "rank " + std::to_string(is_loss ? sum.bad_loss : sum.bad_gradient) + ", step " +
                    std::to_string(state_.step) + ": the " + what +
                    " not finite; lower the learning rate, clip gradients, look at that batch, or "
                    "set on_nan to kSkip");
  }

  void Announce(const data::ArrayStore& rows) const {
    if (Rank() != 0) return;
    const auto batch = call_.at("batch_size").get<std::uint64_t>();
    Log(LogLevel::kInfo, "training on " + std::to_string(WorldSize()) + " workers x " +
                             std::to_string(Threads()) + " threads, " + weights_.way() + "; " +
                             std::to_string(rows.rows()) + " rows, " +
                             std::to_string((rows.rows() + batch - 1) / batch) + " steps an epoch");
  }

  Model model_;
  torch::optim::Optimizer& optimizer_;
  decltype(EstimatorOptions::loss) loss_;
  std::shared_ptr<learn::Schedule> schedule_;
  const Json& call_;
  TrainingState state_;
  std::vector<double> base_rates_;   // of the groups, as the user made them: before weights_
  std::optional<Interrupted> left_;  // until the first epoch begins
  TrainedWeights weights_;
  Records records_;
  StepPolicy policy_;
  std::optional<Commits> commits_;
  std::uint64_t first_step_;
  Json stats_ = Json::array();  // of the epochs that are done, of each worker
  std::uint64_t mine_ = 0;      // rows of this worker in this epoch
  bool went_on_ = false;
};

Json ReadCall(const std::vector<std::uint8_t>& call) { return Json::from_msgpack(call); }

}  // namespace

Scores JoinScores(const std::vector<Json>& parts, const std::vector<std::string>& names,
                  bool sums) {
  Scores scores;
  double weight = 0.0;
  for (const Json& part : parts) {
    scores.rows += part.at("rows").get<std::uint64_t>();
    scores.loss += part.at("loss").get<double>();
    weight += part.at("weight").get<double>();
  }
  if (!sums || weight == 0.0)
    scores.loss = weight == 0.0 ? std::numeric_limits<double>::quiet_NaN() : scores.loss / weight;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto metric = learn::Metric::Make(names[i]);
    for (const Json& part : parts) {
      const auto& state = part.at("metrics").at(i).get_binary();
      metric->Merge(std::as_bytes(std::span(state)));
    }
    scores.metrics.emplace(names[i], metric->Value());
  }
  return scores;
}

SharedShard FitTask(decltype(EstimatorOptions::model) model,
                    decltype(EstimatorOptions::optimizer) optimizer,
                    decltype(EstimatorOptions::loss) loss,
                    decltype(EstimatorOptions::schedule) schedule,
                    decltype(FitOptions::checkpoint_trigger) trigger,
                    std::vector<std::uint8_t> words, SharedShard state,
                    std::vector<SharedShard> rows, std::vector<SharedShard> validation) {
  plugin::UseKernels(true);
  BeginTask();
  const Json call = ReadCall(words);
  TrainingState before = TrainingState::FromBundle(Bundle::Open(state));
  std::optional<Ledger> ledger;
  std::optional<Interrupted> left;
  if (call.contains("ledger")) {
    ledger.emplace(call.at("ledger").get<std::uint64_t>(), call.at("basket").get<std::uint64_t>());
    left = Interrupted::Find(*ledger);
  }
  if (left) {
    before.epoch = left->commit.epoch;
    before.step = left->commit.step;
    before.loss = left->commit.last_loss;
    before.optimizer = left->optimizer();
    before.score = left->record.at("training").at("score").get<double>();
    before.schedule = left->record.at("training").at("schedule").get<std::vector<double>>();
  }
  Model made = MakeModel(model, before.model);
  const auto own_optimizer = optimizer(made.module());
  if (!own_optimizer)
    throw Error(Code::kInvalidArgument, "the function that makes the optimizer returned null");
  Training training(std::move(made), *own_optimizer, loss, schedule ? schedule() : nullptr,
                    trigger ? trigger() : nullptr, call, std::move(before),
                    ledger ? &*ledger : nullptr, std::move(left));
  const auto store = StoreOf(rows);
  const auto checked = validation.empty() ? nullptr : StoreOf(validation);
  Bundle result;
  Json stats = training.Fit(*store, checked.get());
  const TrainingState after = training.State();
  if (Rank() == 0) result = after.ToBundle();
  result.head = {{"stats", stats}, {"state", result.head}};
  const SharedShard shard = result.Put(Shards());
  training.Close();
  return shard;
}

SharedShard EvaluateTask(decltype(EstimatorOptions::model) model,
                         decltype(EstimatorOptions::loss) loss, std::vector<std::uint8_t> words,
                         SharedShard state, std::vector<SharedShard> rows) {
  plugin::UseKernels(true);
  BeginTask();
  const Model made = MakeModelToUse(model, TrainingState::FromBundle(Bundle::Open(state)));
  return Bundle{.head = Score(made, loss, ReadCall(words), *StoreOf(rows)), .tensors = {}}.Put(
      Shards());
}

SharedShard PredictTask(decltype(EstimatorOptions::model) model, std::vector<std::uint8_t> words,
                        SharedShard state, std::vector<SharedShard> rows) {
  plugin::UseKernels(true);
  BeginTask();
  const torch::NoGradGuard no_grad;
  const Model made = MakeModelToUse(model, TrainingState::FromBundle(Bundle::Open(state)));
  const auto store = StoreOf(rows);
  const auto batch_size = ReadCall(words).at("score_batch").get<std::uint64_t>();
  // Whole runs of rows, so that the parts only have to be put behind each other.
  const auto world = static_cast<std::uint64_t>(WorldSize());
  const auto rank = static_cast<std::uint64_t>(Rank());
  const std::uint64_t begin = rank * store->rows() / world;
  const std::uint64_t end = (rank + 1) * store->rows() / world;
  std::vector<Tensor> parts;
  const auto loader = store->Batches({.batch_size = batch_size, .shuffle = false, .start = begin});
  for (std::uint64_t at = begin; at < end;) {
    const auto batch = loader->Next();
    Sample sample = ToSample(batch, store->columns());
    const auto wanted = static_cast<std::int64_t>(std::min(batch->rows, end - at));
    for (Tensor& feature : sample.features) feature = feature.narrow(0, 0, wanted);
    parts.push_back(made.Forward(sample.features).detach());
    at += batch->rows;
  }
  Bundle result;
  if (!parts.empty()) result.tensors.push_back(torch::cat(parts));
  return result.Put(Shards());
}

}  // namespace orca::nn
