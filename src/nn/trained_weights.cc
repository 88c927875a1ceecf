#include "nn/trained_weights.h"

#include <torch/serialize.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <sstream>
#include <tuple>
#include <typeinfo>

#include "nn/tensors.h"
#include "orca/core/error.h"
#include "orca/learn/update.h"
#include "orca/runtime/program.h"

namespace orca::nn {
namespace {

using learn::FlatLayout;
using learn::StepPart;
using learn::StepSum;
using torch::Tensor;

learn::UpdateRule RuleOf(const torch::optim::SGDOptions& options) {
  learn::UpdateRule rule{.kind = learn::UpdateKind::kSgd, .nesterov = options.nesterov()};
  rule.lr = options.lr();
  rule.momentum = options.momentum();
  rule.dampening = options.dampening();
  rule.weight_decay = options.weight_decay();
  return rule;
}

template <typename Options>
learn::UpdateRule RuleOf(const Options& options) {
  learn::UpdateRule rule{.kind = learn::UpdateKind::kAdam, .amsgrad = options.amsgrad()};
  rule.lr = options.lr();
  std::tie(rule.beta1, rule.beta2) = options.betas();
  rule.eps = options.eps();
  rule.weight_decay = options.weight_decay();
  return rule;
}

// The state of Adam or AdamW for a slice, whose elements are where `bank` says; counts the step.
template <typename State, typename Bank>
void CountStep(std::unique_ptr<torch::optim::OptimizerParamState>& state, const Bank& bank,
               learn::UpdateRule& rule) {
  if (state == nullptr) {
    auto made = std::make_unique<State>();
    made->step(0);
    made->exp_avg(bank("exp_avg"));
    made->exp_avg_sq(bank("exp_avg_sq"));
    if (rule.amsgrad) made->max_exp_avg_sq(bank("max_exp_avg_sq"));
    state = std::move(made);
  }
  auto& known = static_cast<State&>(*state);
  known.step(known.step() + 1);
  rule.step = static_cast<double>(known.step());
}

// The group of the task that runs now, which outlives what a task makes.
std::shared_ptr<comm::Communicator> TaskGroup() { return {std::shared_ptr<void>(), &Group()}; }

Tensor ToArchive(const torch::optim::Optimizer& optimizer) {
  std::ostringstream stream;
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  archive.save_to(stream);
  const std::string bytes = stream.str();
  Tensor tensor = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

void FromArchive(torch::optim::Optimizer& optimizer, const Tensor& bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  optimizer.load(archive);
}

}  // namespace

TrainedWeights::TrainedWeights(torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                               const OptimizerState& state, const Interrupted* left)
    : optimizer_(optimizer), codec_(OptimizerCodec::Of(optimizer)), group_(TaskGroup()) {
  std::map<const void*, std::string> names;
  for (const auto& item : module.named_parameters())
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  std::vector<learn::FlatTensor> tensors;
  bool all_trained = true;
  auto& groups = optimizer.param_groups();
  std::map<const void*, std::size_t> owners;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    // Tied weights come twice from libtorch's parameters(); they are one.
    std::erase_if(groups[g].params(), [&](const Tensor& parameter) {
      const auto [owner, is_new] = owners.try_emplace(parameter.unsafeGetTensorImpl(), g);
      if (!is_new && owner->second != g)
        throw Error(Code::kInvalidArgument,
                    "two groups of the optimizer have the same parameter; give it to one");
      return !is_new;
    });
    for (const Tensor& parameter : groups[g].params()) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      if (found == names.end())
        throw Error(Code::kInvalidArgument,
                    "the optimizer has a tensor that is no parameter of the model; make it of "
                    "model.parameters()");
      all_trained = all_trained && parameter.requires_grad();
      parameters_.push_back(parameter);
      names_.push_back(found->second);
      group_of_.push_back(static_cast<int>(g));
      tensors.push_back({.name = found->second,
                         .dtype = DTypeOf(parameter),
                         .count = static_cast<std::uint64_t>(parameter.numel()),
                         .group = static_cast<int>(g)});
    }
  }
  if (parameters_.empty())
    throw Error(Code::kInvalidArgument,
                "the optimizer has no parameters; there is nothing to train");
  layout_.emplace(std::move(tensors));
  TakeOver(state);
  if (left != nullptr) {
    const torch::NoGradGuard no_grad;
    may_fuse_ = left->record.at("may_fuse").get<bool>();
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      parameters_[i].copy_(left->Weight(*layout_, i, parameters_[i].sizes()));
  }
  const bool one_machine = LocalWorldSize() == WorldSize();
  const bool shares = codec_ != nullptr && all_trained && one_machine;
  way_ = shares              ? "shared weights (the optimizer works element by element)"
         : !one_machine      ? "a copy a worker (several machines)"
         : codec_ == nullptr ? "a copy a worker (the optimizer may look at whole parameters)"
                             : "a copy a worker (the optimizer has frozen parameters)";
  const std::size_t bytes = learn::GradientExchange::BlockSize(*layout_, shares ? WorldSize() : 1);
  if (shares) gradients_ = NewSharedBlock(bytes);
  if (!shares) own_gradients_.resize(bytes + 64);
  std::span<std::byte> block;
  if (shares) {
    block = gradients_->bytes();
  } else {
    void* at = own_gradients_.data();
    std::size_t space = own_gradients_.size();
    block = {static_cast<std::byte*>(std::align(64, bytes, at, space)), bytes};
  }
  exchange_ = std::make_unique<learn::GradientExchange>(group_, *layout_, block, shares);
  if (shares) Share();
}

TrainedWeights::~TrainedWeights() = default;

// --- the step

StepSum TrainedWeights::Step(const StepPart& part, const StepPolicy& policy,
                             const std::function<StepPart()>& again) {
  if (part.weight != 0.0) Collect();
  if (commits_ != nullptr) commits_->Note();
  const StepSum sum = exchange_->Meet(part, policy.kind);
  if (sum.weight == 0.0 || !policy.goes_on(sum)) {
    exchange_->Leave();
  } else if (Shares()) {
    const bool all_used = std::ranges::all_of(sum.used, [](bool used) { return used; });
    if (is_fused() && !all_used) EndFusing();
    if (is_fused()) {
      UpdateByEngine(sum, policy);
    } else {
      UpdateByTorch(sum, policy, all_used);
    }
    exchange_->Leave();
  } else {
    SpreadGradients(sum);
    ClipOwn(policy);
    if (dynamic_cast<torch::optim::LBFGS*>(&optimizer_) != nullptr) {
      bool first = true;
      optimizer_.step([&] {
        StepSum joined = sum;
        if (!std::exchange(first, false)) {
          const StepPart mine = again();
          if (mine.weight != 0.0) Collect();
          joined = exchange_->Meet(mine, policy.kind);
          SpreadGradients(joined);
          ClipOwn(policy);
        }
        return torch::scalar_tensor(joined.loss, parameters_[0].options());
      });
    } else {
      optimizer_.step();
    }
  }
  for (Tensor& parameter : parameters_) parameter.mutable_grad() = Tensor();
  return sum;
}

// The optimizer's own step.
void TrainedWeights::UpdateByTorch(const StepSum& sum, const StepPolicy& policy, bool all_used) {
  if (!all_used || has_idle_) Follow(sum.used);
  exchange_->ReduceShare(runs_);
  std::vector<Tensor> gradients;
  for (const Slice& slice : slices_)
    if (slice.flat.grad().defined()) gradients.push_back(slice.gradient);
  Clip(policy, gradients);
  if (commits_ != nullptr) commits_->Save();
  optimizer_.step();
  if (is_new_) AdoptMoments();
}

// The step of an optimizer that the engine knows, as Python's Estimators make it: the same bits.
void TrainedWeights::UpdateByEngine(const StepSum& sum, const StepPolicy& policy) {
  double scale = 1.0;
  if (policy.clip_norm) {
    double squares = exchange_->SquaresOfShare(runs_, policy.clip_value);
    group_->AllReduce(comm::AsBytes(std::span(&squares, 1)), DType::kFloat64);
    const double norm = std::sqrt(squares);
    if (norm > *policy.clip_norm) scale = *policy.clip_norm / (norm + 1e-6);
  }
  std::vector<learn::UpdatePart> parts;
  for (const Slice& slice : slices_) {
    learn::UpdatePart& part = parts.emplace_back();
    part.run = slice.run;
    part.rule = NextRule(slice);
    part.rule.scale = scale;
    part.rule.clips = policy.clip_value.has_value();
    if (policy.clip_value) std::tie(part.rule.clip_low, part.rule.clip_high) = *policy.clip_value;
    const std::vector<std::string> keys = StateKeys(slice.run.group);
    for (std::size_t i = 0; i < keys.size(); ++i)
      part.regions.at(i) = static_cast<std::uint64_t>(
          1 + std::distance(banks_.begin(), banks_.find(keys[i])));  // Behind the weights.
  }
  const std::uint64_t number = commits_ != nullptr ? commits_->BeginUpdate() : ++updates_;
  redo_->Update(Rank(), number, {.loss = sum.loss, .rows = sum.rows}, parts, exchange_->Joined());
}

// Counts the step of a slice, whose state is in shared memory.
learn::UpdateRule TrainedWeights::NextRule(const Slice& slice) {
  const auto& options =
      optimizer_.param_groups()[static_cast<std::size_t>(slice.run.group)].options();
  const FlatLayout::Range mine = FlatLayout::Share(slice.run.range, Rank(), WorldSize());
  const auto bank = [&](const char* key) { return Flat(*banks_.at(key), slice.run.dtype, mine); };
  auto& states = optimizer_.state();
  void* const key = slice.flat.unsafeGetTensorImpl();
  learn::UpdateRule rule;
  if (typeid(optimizer_) == typeid(torch::optim::SGD)) {
    rule = RuleOf(static_cast<const torch::optim::SGDOptions&>(options));
    if (rule.momentum == 0.0) return rule;
    auto& state = states[key];
    if (state == nullptr) state = std::make_unique<torch::optim::SGDParamState>();
    auto& known = static_cast<torch::optim::SGDParamState&>(*state);
    rule.first = !known.momentum_buffer().defined();
    if (rule.first) known.momentum_buffer(bank("momentum_buffer"));
  } else if (typeid(optimizer_) == typeid(torch::optim::Adam)) {
    rule = RuleOf(static_cast<const torch::optim::AdamOptions&>(options));
    CountStep<torch::optim::AdamParamState>(states[key], bank, rule);
  } else {
    rule = RuleOf(static_cast<const torch::optim::AdamWOptions&>(options));
    rule.kind = learn::UpdateKind::kAdamW;
    CountStep<torch::optim::AdamWParamState>(states[key], bank, rule);
  }
  return rule;
}

// What the engine keeps for every element of a group, in its order.
std::vector<std::string> TrainedWeights::StateKeys(int group) const {
  const auto& options = optimizer_.param_groups()[static_cast<std::size_t>(group)].options();
  bool amsgrad = false;
  if (const auto* const sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options)) {
    if (sgd->momentum() == 0.0) return {};
    return {"momentum_buffer"};
  }
  if (const auto* const adam = dynamic_cast<const torch::optim::AdamOptions*>(&options))
    amsgrad = adam->amsgrad();
  if (const auto* const adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&options))
    amsgrad = adamw->amsgrad();
  std::vector<std::string> keys{"exp_avg", "exp_avg_sq"};
  if (amsgrad) keys.emplace_back("max_exp_avg_sq");
  return keys;
}

bool TrainedWeights::CanFuse() const {
  const auto& type = typeid(optimizer_);
  const bool is_known = type == typeid(torch::optim::SGD) || type == typeid(torch::optim::Adam) ||
                        type == typeid(torch::optim::AdamW);
  return may_fuse_ && is_known && std::ranges::all_of(layout_->tensors(), [](const auto& tensor) {
           return tensor.dtype == DType::kFloat32 || tensor.dtype == DType::kFloat64;
         });
}

// From now on the engine makes the steps.
void TrainedWeights::Fuse() {
  for (std::size_t group = 0; group < optimizer_.param_groups().size(); ++group)
    for (const std::string& key : StateKeys(static_cast<int>(group)))
      if (!banks_.contains(key)) banks_.emplace(key, NewSharedBlock(layout_->size()));
  const learn::RedoLog::Shape shape{.world = WorldSize(), .parts = parameters_.size()};
  redo_block_ = NewSharedBlock(learn::RedoLog::BlockSize(shape));
  std::vector<std::span<std::byte>> regions;
  for (const SharedBlockPointer& block : Regions()) regions.push_back(block->bytes());
  redo_ = std::make_unique<learn::RedoLog>(redo_block_->bytes(), shape, std::move(regions));
}

// From now on the optimizer makes the steps: the engine cannot leave parameters alone.
void TrainedWeights::EndFusing() {
  redo_.reset();
  may_fuse_ = false;
  if (commits_ != nullptr) commits_->Switch();
  redo_block_.reset();
}

// --- for commits

bool TrainedWeights::CanCommit() const {
  if (!Shares()) return false;
  // A step that somebody else finishes must not make the first state: a record would not know it.
  return !is_fused() || std::ranges::all_of(slices_, [this](const Slice& slice) {
    return StateKeys(slice.run.group).empty() || StateOf(slice.flat) != nullptr;
  });
}

std::vector<SharedBlockPointer> TrainedWeights::Regions() const {
  std::vector<SharedBlockPointer> regions{weights_};
  for (const auto& [key, block] : banks_) regions.push_back(block);
  return regions;
}

std::vector<learn::UndoLog::Piece> TrainedWeights::Pieces() const {
  std::vector<learn::UndoLog::Piece> pieces;
  for (const Slice& slice : slices_) {
    const FlatLayout::Range mine = FlatLayout::Share(slice.run.range, Rank(), WorldSize());
    if (mine.size() == 0) continue;
    pieces.push_back({.region = 0, .offset = mine.begin, .bytes = mine.size()});
    const auto* const state = StateOf(slice.flat);
    if (state == nullptr) continue;
    const Moments moments = codec_->Export(*state);
    std::uint64_t region = 0;
    for (const auto& [key, block] : banks_) {
      ++region;
      if (moments.contains(key))
        pieces.push_back({.region = region, .offset = mine.begin, .bytes = mine.size()});
    }
  }
  return pieces;
}

std::vector<SharedBlockPointer> TrainedWeights::Blocks() const {
  std::vector<SharedBlockPointer> blocks = Regions();
  blocks.push_back(gradients_);
  if (redo_block_) blocks.push_back(redo_block_);
  return blocks;
}

Json TrainedWeights::Record() {
  const OptimizerState state = State();
  const auto id = [](const SharedBlockPointer& block) {
    return block ? Json(block->hold()->id()) : Json();
  };
  Json record = {{"weights", id(weights_)},
                 {"gradients", id(gradients_)},
                 {"redo", is_fused() ? id(redo_block_) : Json()},
                 {"may_fuse", may_fuse_},
                 {"banks", Json::object()},
                 {"tensors", Json::array()},
                 {"groups", Json::array()},
                 {"moments", Json::array()}};
  for (const auto& [key, block] : banks_) record["banks"][key] = id(block);
  for (const learn::FlatTensor& tensor : layout_->tensors())
    record["tensors"].push_back(
        Json::array({tensor.name, static_cast<int>(tensor.dtype), tensor.count, tensor.group}));
  for (const OptimizerState::Group& group : state.groups)
    record["groups"].push_back({{"settings", group.settings}, {"parameters", group.parameters}});
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Json known = {
        {"shape", parameters_[i].sizes().vec()}, {"keys", keys_[i]}, {"counters", Json::object()}};
    for (const auto& [key, tensor] : counters_[i]) known["counters"][key] = tensor.item<double>();
    record["moments"].push_back(std::move(known));
  }
  return record;
}

void TrainedWeights::Collect() {
  std::vector<const void*> places;
  for (Tensor& parameter : parameters_) {
    Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined()) {
      if (gradient.is_sparse()) gradient = gradient.to_dense();
      if (!gradient.is_contiguous()) gradient = gradient.contiguous();
    }
    places.push_back(gradient.defined() ? gradient.const_data_ptr() : nullptr);
  }
  exchange_->Collect(places);
}

void TrainedWeights::ClipOwn(const StepPolicy& policy) const {
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : parameters_)
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  Clip(policy, std::move(gradients));
}

// The joined gradients become those of this worker's parameters.
void TrainedWeights::SpreadGradients(const StepSum& sum) {
  exchange_->ReduceAll();
  std::vector<void*> places;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor& gradient = parameters_[i].mutable_grad();
    if (!sum.used[i]) gradient = Tensor();
    if (sum.used[i] && !gradient.defined())
      gradient = torch::empty_like(parameters_[i].detach(), {}, torch::MemoryFormat::Contiguous);
    places.push_back(gradient.defined() ? gradient.data_ptr() : nullptr);
  }
  exchange_->Spread(places);
  exchange_->Leave();
}

void TrainedWeights::Clip(const StepPolicy& policy, std::vector<Tensor> gradients) const {
  if (policy.clip_value)
    for (Tensor& gradient : gradients)
      gradient.clamp_(policy.clip_value->first, policy.clip_value->second);
  if (!policy.clip_norm) return;
  double squares = 0.0;
  for (const Tensor& gradient : gradients)
    squares += gradient.to(torch::kFloat64).pow(2).sum().item<double>();
  if (Shares()) group_->AllReduce(comm::AsBytes(std::span(&squares, 1)), DType::kFloat64);
  const double norm = std::sqrt(squares);
  if (norm > *policy.clip_norm)
    for (Tensor& gradient : gradients) gradient.mul_(*policy.clip_norm / (norm + 1e-6));
}

// --- state

// What a checkpoint knows goes into the optimizer, as if it had learned it here.
void TrainedWeights::TakeOver(const OptimizerState& state) {
  if (state.groups.empty()) return;
  if (state.archive.defined() != (codec_ == nullptr))
    throw Error(Code::kInvalidArgument,
                "the optimizer's state is of an optimizer of another class; load weights alone, or "
                "use the optimizer that it came from");
  if (codec_ == nullptr) return FromArchive(optimizer_, state.archive);
  auto& groups = optimizer_.param_groups();
  std::size_t count = 0;
  for (const auto& group : state.groups) count += group.parameters.size();
  if (state.groups.size() != groups.size() || count != parameters_.size())
    throw Error(Code::kInvalidArgument,
                "the optimizer's state is of " + std::to_string(count) + " parameters in " +
                    std::to_string(state.groups.size()) + " groups, the optimizer has " +
                    std::to_string(parameters_.size()) + " in " + std::to_string(groups.size()) +
                    "; load it into the optimizer that it came from");
  std::size_t place = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    codec_->Apply(state.groups[g].settings, groups[g].options());
    for (const std::size_t number : state.groups[g].parameters) {
      const Tensor& parameter = parameters_.at(place++);
      Moments moments = state.moments.at(number);
      if (moments.empty()) continue;
      for (auto& [key, tensor] : moments) {
        if (!IsCounter(key) && tensor.sizes() != parameter.sizes())
          throw Error(Code::kInvalidArgument, "the optimizer's '" + key + "' of '" +
                                                  names_[place - 1] +
                                                  "' has another shape than the parameter");
        tensor = tensor.clone();
      }
      auto imported = codec_->Import(moments);
      const Moments known = codec_->Export(*imported);
      for (const auto& [key, tensor] : moments)
        if (!known.contains(key))
          throw Error(Code::kInvalidArgument, "the optimizer's state has '" + key +
                                                  "', which this optimizer has not; it is of an "
                                                  "optimizer of another class");
      optimizer_.state()[parameter.unsafeGetTensorImpl()] = std::move(imported);
    }
  }
}

OptimizerState TrainedWeights::State() {
  if (Shares()) GatherCounters();
  OptimizerState state;
  state.moments.resize(parameters_.size());
  std::size_t number = 0;
  for (std::size_t g = 0; g < optimizer_.param_groups().size(); ++g) {
    auto& group = state.groups.emplace_back();
    group.settings = codec_ == nullptr ? Json::object()
                                       : codec_->Settings(optimizer_.param_groups()[g].options());
    for (; number < parameters_.size() && group_of_[number] == static_cast<int>(g); ++number)
      group.parameters.push_back(number);
  }
  if (codec_ == nullptr) state.archive = ToArchive(optimizer_);
  for (std::size_t i = 0; codec_ != nullptr && i < parameters_.size(); ++i) {
    if (Shares()) {
      state.moments[i] = counters_[i];
      for (const std::string& key : keys_[i]) state.moments[i][key] = Whole(banks_.at(key), i);
    } else if (const auto* const found = StateOf(parameters_[i])) {
      state.moments[i] = codec_->Export(*found);
    }
  }
  return state;
}

torch::optim::OptimizerParamState* TrainedWeights::StateOf(const Tensor& parameter) const {
  const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
  return found == optimizer_.state().end() ? nullptr : found->second.get();
}

// --- shared weights

Tensor TrainedWeights::Flat(const data::SharedBlock& block, DType dtype, FlatLayout::Range range) {
  const std::array<std::int64_t, 1> shape{static_cast<std::int64_t>(range.size() / SizeOf(dtype))};
  return View(block.bytes().subspan(range.begin, range.size()), io::ToTensorType(dtype), shape,
              block.shared_from_this());
}

Tensor TrainedWeights::Whole(const SharedBlockPointer& block, std::size_t parameter) const {
  return View(block->bytes().subspan(layout_->offset(parameter), layout_->bytes(parameter)),
              io::ToTensorType(layout_->tensors()[parameter].dtype), parameters_[parameter].sizes(),
              block);
}

// The parameters become views of one block; what the optimizer knows of them moves into others.
void TrainedWeights::Share() {
  const torch::NoGradGuard no_grad;
  weights_ = NewSharedBlock(layout_->size());
  counters_.resize(parameters_.size());
  keys_.resize(parameters_.size());
  std::set<std::string> all_keys;
  std::vector<Moments> before(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (const auto* const state = StateOf(parameters_[i])) before[i] = codec_->Export(*state);
    for (const auto& [key, tensor] : before[i]) {
      if (IsCounter(key)) {
        counters_[i].emplace(key, tensor);
      } else {
        keys_[i].push_back(key);
        all_keys.insert(key);
      }
    }
  }
  for (const std::string& key : all_keys) banks_.emplace(key, NewSharedBlock(layout_->size()));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor view = Whole(weights_, i);
    if (Rank() == 0) {
      view.copy_(parameters_[i]);
      for (const std::string& key : keys_[i]) Whole(banks_.at(key), i).copy_(before[i].at(key));
    }
    parameters_[i].set_data(view);
  }
  group_->Barrier();
  std::map<std::pair<std::vector<std::string>, double>, int> known;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto step = counters_[i].find("step");
    const double count = step == counters_[i].end() ? -1.0 : step->second.item<double>();
    kinds_.push_back(
        known.try_emplace({keys_[i], count}, static_cast<int>(known.size())).first->second);
  }
  Cut();
  if (CanFuse()) Fuse();
}

// Gives the optimizer its slices of the shared weights, with what it knows of them.
void TrainedWeights::Cut() {
  ++changes_;
  runs_ = layout_->Runs(kinds_);
  auto& groups = optimizer_.param_groups();
  for (auto& group : groups) group.params().clear();
  optimizer_.state().clear();
  slices_.clear();
  for (const FlatLayout::Run& run : runs_) {
    if (run.range.size() == 0) continue;
    const FlatLayout::Range mine = FlatLayout::Share(run.range, Rank(), WorldSize());
    Slice slice{
        .run = run,
        .flat = Flat(*weights_, run.dtype, mine),
        .gradient = View(
            exchange_->bank().subspan(mine.begin, mine.size()), io::ToTensorType(run.dtype),
            std::array{static_cast<std::int64_t>(mine.size() / SizeOf(run.dtype))}, gradients_),
        .members = {}};
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (layout_->offset(i) >= run.range.begin && layout_->offset(i) < run.range.end &&
          kinds_[i] == run.kind && group_of_[i] == run.group)
        slice.members.push_back(i);
    slice.flat.mutable_grad() = slice.gradient;
    groups[static_cast<std::size_t>(run.group)].params().push_back(slice.flat);
    const std::size_t first = slice.members.at(0);
    Moments moments = counters_[first];
    for (const std::string& key : keys_[first])
      moments[key] = Flat(*banks_.at(key), run.dtype, mine);
    if (!moments.empty())
      optimizer_.state()[slice.flat.unsafeGetTensorImpl()] = codec_->Import(moments);
    slices_.push_back(std::move(slice));
  }
  has_idle_ = false;
  is_new_ = std::ranges::any_of(
      slices_, [this](const Slice& slice) { return StateOf(slice.flat) == nullptr; });
}

// A parameter that no worker has a gradient of is left alone in this step.
void TrainedWeights::Follow(const std::vector<bool>& used) {
  const bool is_mixed = std::ranges::any_of(slices_, [&](const Slice& slice) {
    return std::ranges::any_of(slice.members,
                               [&](std::size_t i) { return used[i] != used[slice.members[0]]; });
  });
  if (is_mixed) {
    GatherCounters();
    std::map<std::pair<int, bool>, int> known;
    for (std::size_t i = 0; i < kinds_.size(); ++i)
      kinds_[i] =
          known.try_emplace({kinds_[i], used[i]}, static_cast<int>(known.size())).first->second;
    Cut();
  }
  for (Slice& slice : slices_)
    slice.flat.mutable_grad() = used[slice.members[0]] ? slice.gradient : Tensor();
  has_idle_ = !std::ranges::all_of(used, [](bool is_used) { return is_used; });
}

// Moves what the optimizer has made in its first step into shared memory.
void TrainedWeights::AdoptMoments() {
  is_new_ = false;
  for (Slice& slice : slices_) {
    const auto* const state = StateOf(slice.flat);
    if (state == nullptr) {
      is_new_ = true;
      continue;
    }
    Moments moments = codec_->Export(*state);
    const std::size_t first = slice.members.at(0);
    const DType dtype = layout_->tensors()[first].dtype;
    const std::span<std::byte> memory = weights_->bytes();
    const auto* const at = static_cast<const std::byte*>(slice.flat.const_data_ptr());
    const std::size_t begin =
        slice.flat.numel() == 0 ? 0 : static_cast<std::size_t>(at - memory.data());
    bool moved = false;
    for (auto& [key, tensor] : moments) {
      if (IsCounter(key)) continue;
      if (!banks_.contains(key)) banks_.emplace(key, NewSharedBlock(layout_->size()));
      const Tensor view = Flat(*banks_.at(key), dtype, {begin, begin + slice.flat.nbytes()});
      if (view.const_data_ptr() == tensor.const_data_ptr()) continue;
      view.copy_(tensor);
      tensor = view;
      moved = true;
    }
    if (!moved) continue;
    optimizer_.state()[slice.flat.unsafeGetTensorImpl()] = codec_->Import(moments);
    ++changes_;
  }
}

// Notes what the optimizer knows of each slice for its parameters.
void TrainedWeights::GatherCounters() {
  for (const Slice& slice : slices_) {
    const auto* const state = StateOf(slice.flat);
    if (state == nullptr) continue;
    const Moments moments = codec_->Export(*state);
    for (const std::size_t i : slice.members) {
      counters_[i].clear();
      keys_[i].clear();
      for (const auto& [key, tensor] : moments) {
        if (IsCounter(key)) {
          counters_[i].emplace(key, tensor);
        } else {
          keys_[i].push_back(key);
        }
      }
    }
  }
}

}  // namespace orca::nn
