#include "nn/training_state.h"

#include <cmath>
#include <limits>
#include <span>

#include "nn/tensors.h"
#include "orca/core/error.h"
#include "orca/io/tensor.h"

namespace orca::nn {
namespace {

// --- the tree of a checkpoint: dicts are lists of pairs, leaves say what they are

Json Value(const Json& value) { return {{"value", value}}; }

// JSON has no infinities.
Json Number(double number) {
  if (std::isfinite(number)) return Value(number);
  return {{"float", std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"}};
}

double ReadNumber(const Json& leaf) {
  if (!leaf.contains("float")) return leaf.at("value").get<double>();
  const auto text = leaf.at("float").get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  return text == "inf" ? infinity : -infinity;
}

class TreeWriter {
 public:
  explicit TreeWriter(std::vector<torch::Tensor>& tensors) : tensors_(tensors) {}

  Json Leaf(const torch::Tensor& tensor) {
    tensors_.push_back(tensor.detach().contiguous());
    return {{"tensor", std::to_string(tensors_.size() - 1)}};
  }
  template <typename Pairs>
  Json Tensors(const Pairs& pairs) {
    Json::array_t items;
    for (const auto& [name, tensor] : pairs)
      items.push_back(Json::array({Value(name), Leaf(tensor)}));
    return {{"dict", items}};
  }

 private:
  std::vector<torch::Tensor>& tensors_;
};

Json::array_t Pair(const char* key, Json value) { return {Value(key), std::move(value)}; }

Json OptimizerTree(const OptimizerState& state, TreeWriter& writer) {
  Json::array_t moments;
  for (std::size_t i = 0; i < state.moments.size(); ++i)
    if (!state.moments[i].empty())
      moments.push_back(Json::array({Value(i), writer.Tensors(state.moments[i])}));
  Json::array_t groups;
  for (const OptimizerState::Group& group : state.groups) {
    Json::array_t settings;
    for (const auto& [key, value] : group.settings.items())
      settings.push_back(Pair(key.c_str(), value));
    Json::array_t numbers;
    for (const std::size_t number : group.parameters) numbers.push_back(Value(number));
    settings.push_back(Pair("params", {{"list", numbers}}));
    groups.push_back({{"dict", settings}});
  }
  Json::array_t parts{Pair("state", {{"dict", moments}}), Pair("param_groups", {{"list", groups}})};
  if (state.archive.defined()) parts.push_back(Pair("archive", writer.Leaf(state.archive)));
  return {{"dict", parts}};
}

class TreeReader {
 public:
  explicit TreeReader(const std::vector<torch::Tensor>& tensors) : tensors_(tensors) {}

  const Json* Find(const Json& dict, const std::string& key) const {
    for (const Json& pair : dict.at("dict"))
      if (pair.at(0).value("value", Json()) == key) return &pair.at(1);
    return nullptr;
  }
  const Json& Get(const Json& dict, const std::string& key) const {
    const Json* const found = Find(dict, key);
    if (found == nullptr)
      throw Error(Code::kInvalidArgument, "the state of training has no '" + key + "'");
    return *found;
  }
  // Undefined for what is no tensor and no number.
  torch::Tensor Leaf(const Json& leaf) const {
    if (leaf.contains("tensor"))
      return tensors_.at(std::stoul(leaf.at("tensor").get<std::string>()));
    const bool is_number = leaf.contains("float") || leaf.value("value", Json()).is_number();
    return is_number ? torch::scalar_tensor(ReadNumber(leaf), torch::kFloat32) : torch::Tensor();
  }
  NamedTensors Tensors(const Json& dict) const {
    NamedTensors found;
    for (const Json& pair : dict.at("dict"))
      if (torch::Tensor tensor = Leaf(pair.at(1)); tensor.defined())
        found.emplace_back(pair.at(0).at("value").get<std::string>(), std::move(tensor));
    return found;
  }

 private:
  const std::vector<torch::Tensor>& tensors_;
};

OptimizerState ReadOptimizer(const Json& tree, const TreeReader& reader) {
  OptimizerState state;
  for (const Json& group : reader.Get(tree, "param_groups").at("list")) {
    OptimizerState::Group& read = state.groups.emplace_back();
    read.settings = Json::object();
    for (const Json& pair : group.at("dict")) {
      const auto key = pair.at(0).at("value").get<std::string>();
      if (key != "params") {
        read.settings[key] = pair.at(1);
        continue;
      }
      for (const Json& number : pair.at(1).at("list"))
        read.parameters.push_back(number.at("value").get<std::size_t>());
    }
    for (const std::size_t number : read.parameters)
      if (number >= state.moments.size()) state.moments.resize(number + 1);
  }
  for (const Json& pair : reader.Get(tree, "state").at("dict")) {
    const auto number = pair.at(0).at("value").get<std::size_t>();
    for (auto& [key, tensor] : reader.Tensors(pair.at(1)))
      state.moments.at(number).emplace(key, tensor);
  }
  if (const Json* const archive = reader.Find(tree, "archive"))
    state.archive = reader.Leaf(*archive);
  return state;
}

void CheckOne(const Json& list, const char* what) {
  if (list.at("list").size() > 1)
    throw Error(Code::kInvalidArgument, "the state has " + std::to_string(list.at("list").size()) +
                                            " " + what + "; an Estimator of C++ has one");
}

TrainingState ReadState(const Bundle& bundle) {
  const TreeReader reader(bundle.tensors);
  TrainingState state;
  if (!bundle.head.contains("dict"))
    throw Error(Code::kInvalidArgument, "this is no state dict: it has no names");
  const Json* const models = reader.Find(bundle.head, "models");
  if (models == nullptr) {
    state.model = reader.Tensors(bundle.head);
    return state;
  }
  CheckOne(*models, "models");
  state.model = reader.Tensors(models->at("list").at(0));
  if (const Json* const epoch = reader.Find(bundle.head, "epoch"))
    state.epoch = epoch->at("value").get<std::uint64_t>();
  if (const Json* const step = reader.Find(bundle.head, "global_step"))
    state.step = step->at("value").get<std::uint64_t>();
  if (const Json* const optimizers = reader.Find(bundle.head, "optimizers")) {
    CheckOne(*optimizers, "optimizers");
    if (!optimizers->at("list").empty())
      state.optimizer = ReadOptimizer(optimizers->at("list")[0], reader);
  }
  if (const Json* const last = reader.Find(bundle.head, "last")) {
    const Json& pair = last->contains("list") ? last->at("list") : last->at("tuple");
    state.loss = ReadNumber(pair.at(0));
    state.score = ReadNumber(pair.at(1));
  }
  const Json* const schedulers = reader.Find(bundle.head, "schedulers");
  if (schedulers == nullptr || schedulers->at("list").empty()) return state;
  const Json& scheduler = schedulers->at("list")[0];
  const Json* const schedule = reader.Find(scheduler, "schedule");
  if (schedule == nullptr) return state;  // One of torch's, which no schedule of ours can follow.
  for (const Json& number : schedule->at("list")) state.schedule.push_back(ReadNumber(number));
  return state;
}

}  // namespace

// --- bundles

// One row: the head is its first column, each tensor another.
std::shared_ptr<const data::Shard> Bundle::Put(const std::shared_ptr<data::ShardHome>& home) const {
  const std::vector<std::uint8_t> words = Json::to_msgpack(head);
  std::vector<data::ColumnSpec> specs{{.name = "head",
                                       .dtype = DType::kUInt8,
                                       .row_shape = {static_cast<std::int64_t>(words.size())}}};
  std::vector<data::Column> columns{{.values = std::as_bytes(std::span(words))}};
  std::vector<torch::Tensor> kept;
  for (const torch::Tensor& tensor : tensors) {
    kept.push_back(tensor.detach().contiguous());
    specs.push_back({.name = std::to_string(kept.size() - 1),
                     .dtype = DTypeOf(tensor),
                     .row_shape = tensor.sizes().vec()});
    columns.push_back({.values = BytesOf(kept.back())});
  }
  return data::Shard::Put(home, specs, 1, columns);
}

Bundle Bundle::Open(const std::shared_ptr<const data::Shard>& shard) {
  const auto& columns = shard->columns();
  const auto* const words = reinterpret_cast<const std::uint8_t*>(columns.at(0).values.data());
  Bundle bundle{.head = Json::from_msgpack(words, words + columns[0].values.size()), .tensors = {}};
  for (std::size_t i = 1; i < columns.size(); ++i) {
    const data::ColumnSpec& spec = shard->specs()[i];
    bundle.tensors.push_back(
        View(columns[i].values, io::ToTensorType(spec.dtype), spec.row_shape, shard));
  }
  return bundle;
}

// --- states

Bundle TrainingState::ToBundle() const {
  Bundle bundle;
  TreeWriter writer(bundle.tensors);
  Json::array_t schedulers;
  if (!schedule.empty()) {
    Json::array_t numbers;
    for (const double number : schedule) numbers.push_back(Number(number));
    const Json::array_t parts{Pair("schedule", {{"list", numbers}})};
    schedulers.push_back({{"dict", parts}});
  }
  Json::array_t models{writer.Tensors(model)};
  Json::array_t optimizers;
  if (!optimizer.groups.empty()) optimizers.push_back(OptimizerTree(optimizer, writer));
  Json::array_t parts{Pair("epoch", Value(epoch)), Pair("global_step", Value(step)),
                      Pair("models", {{"list", models}}),
                      Pair("optimizers", {{"list", optimizers}}),
                      Pair("schedulers", {{"list", schedulers}})};
  if (!schedule.empty())
    parts.push_back(Pair("last", {{"list", Json::array({Number(loss), Number(score)})}}));
  bundle.head = {{"dict", parts}};
  return bundle;
}

TrainingState TrainingState::FromBundle(const Bundle& bundle) {
  try {
    return ReadState(bundle);
  } catch (const Json::exception& error) {
    throw Error(Code::kInvalidArgument,
                std::string("this is no state dict of tensors, and no state of an Estimator: ") +
                    error.what());
  }
}

io::CheckpointContent TrainingState::ToCheckpoint() const {
  Bundle bundle = ToBundle();
  auto kept = std::make_shared<std::vector<torch::Tensor>>(std::move(bundle.tensors));
  io::CheckpointContent content;
  content.progress = {.iteration = step, .epoch = epoch};
  std::vector<io::Tensor>& part = content.parts["state"];
  for (std::size_t i = 0; i < kept->size(); ++i) {
    const torch::Tensor& tensor = (*kept)[i];
    part.push_back(
        {.spec = {.name = std::to_string(i), .type = TypeOf(tensor), .shape = tensor.sizes().vec()},
         .data = BytesOf(tensor)});
  }
  content.fields = Json{{"tree", bundle.head}}.dump();
  content.owner = std::move(kept);
  return content;
}

TrainingState TrainingState::FromCheckpoint(const io::Checkpoint& checkpoint) {
  const io::SafetensorsFile& part = checkpoint.part("state");
  const Json fields = Json::parse(checkpoint.fields(), nullptr, false);
  if (!fields.contains("tree"))
    throw Error(Code::kInvalidArgument,
                "checkpoint " + checkpoint.folder().string() + " is not one of an Estimator");
  Bundle bundle{.head = fields.at("tree"), .tensors = {}};
  bundle.tensors.resize(part.tensors().size());
  for (const io::Tensor& tensor : part.tensors()) {
    const std::size_t number = std::stoul(tensor.spec.name);
    // A file may put a tensor anywhere; torch wants its elements aligned.
    bundle.tensors.at(number) =
        View(tensor.data, tensor.spec.type, tensor.spec.shape, part.owner()).clone();
  }
  return FromBundle(bundle);
}

TrainingState TrainingState::Copy() const {
  TrainingState copy = *this;
  for (auto& [name, tensor] : copy.model) tensor = tensor.detach().clone();
  for (Moments& moments : copy.optimizer.moments)
    for (auto& [key, tensor] : moments) tensor = tensor.detach().clone();
  return copy;
}

// --- modules

NamedTensors TensorsOf(const torch::nn::Module& module) {
  NamedTensors found;
  for (const auto& item : module.named_parameters()) found.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) found.emplace_back(item.key(), item.value());
  return found;
}

void LoadTensors(torch::nn::Module& module, const NamedTensors& weights, const std::string& what) {
  const NamedTensors own = TensorsOf(module);
  std::vector<io::TensorSpec> expected;
  std::map<std::string, io::TensorType> types;
  for (const auto& [name, tensor] : own) types.emplace(name, TypeOf(tensor));
  for (const auto& [name, tensor] : own)
    expected.push_back({.name = name, .type = TypeOf(tensor), .shape = tensor.sizes().vec()});
  std::vector<io::Tensor> found;
  std::map<std::string, torch::Tensor> by_name;
  for (const auto& [name, tensor] : weights) {
    // As with Python's load_state_dict, values take the type that the model has.
    const auto type = types.find(name);
    found.push_back({.spec = {.name = name,
                              .type = type == types.end() ? TypeOf(tensor) : type->second,
                              .shape = tensor.sizes().vec()},
                     .data = {}});
    by_name.emplace(name, tensor);
  }
  io::CheckSameTensors(expected, found, what);
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : own) torch::Tensor(tensor).copy_(by_name.at(name));
}

}  // namespace orca::nn
