#include "nn/optimizer_codec.h"

#include <string>
#include <tuple>
#include <typeindex>
#include <utility>

namespace orca::nn {
namespace {

using torch::Tensor;

template <typename State>
using TensorField = std::pair<const char*, Tensor& (State::*)() noexcept>;
template <typename Options>
using NumberField = std::pair<const char*, double& (Options::*)() noexcept>;
template <typename Options>
using FlagField = std::pair<const char*, bool& (Options::*)() noexcept>;

template <typename State>
concept Counts = requires(State state) { state.step(); };
template <typename Options>
concept HasBetas = requires(Options options) { options.betas(); };

// The accessors of torch are overloaded: one reads, one writes, one gives the reference.
#define ORCA_FIELD(Class, Type, name) \
  { #name, static_cast<Type& (Class::*)() noexcept>(&Class::name) }

Json Leaf(const Json& value) { return {{"value", value}}; }

template <typename State, typename Options>
class Codec final : public OptimizerCodec {
 public:
  Codec(std::vector<TensorField<State>> tensors, std::vector<NumberField<Options>> numbers,
        std::vector<FlagField<Options>> flags)
      : tensors_(std::move(tensors)), numbers_(std::move(numbers)), flags_(std::move(flags)) {}

  Moments Export(const torch::optim::OptimizerParamState& state) const override {
    auto own = static_cast<const State&>(state);
    Moments moments;
    if constexpr (Counts<State>)
      moments.emplace("step",
                      torch::scalar_tensor(static_cast<double>(own.step()), torch::kFloat32));
    for (const auto& [key, field] : tensors_)
      if ((own.*field)().defined()) moments.emplace(key, (own.*field)());
    return moments;
  }

  std::unique_ptr<torch::optim::OptimizerParamState> Import(const Moments& moments) const override {
    auto state = std::make_unique<State>();
    if constexpr (Counts<State>)
      if (const auto found = moments.find("step"); found != moments.end())
        state->step(static_cast<std::int64_t>(found->second.template item<double>()));
    for (const auto& [key, field] : tensors_)
      if (const auto found = moments.find(key); found != moments.end())
        ((*state).*field)() = found->second;
    return state;
  }

  Json Settings(const torch::optim::OptimizerOptions& options) const override {
    auto own = static_cast<const Options&>(options);
    Json settings = Json::object();
    for (const auto& [key, field] : numbers_) settings[key] = Leaf((own.*field)());
    if constexpr (HasBetas<Options>) {
      const auto [first, second] = own.betas();
      settings["betas"] = {{"tuple", Json::array({Leaf(first), Leaf(second)})}};
    }
    for (const auto& [key, field] : flags_) settings[key] = Leaf((own.*field)());
    return settings;
  }

  void Apply(const Json& settings, torch::optim::OptimizerOptions& options) const override {
    auto& own = static_cast<Options&>(options);
    const auto value = [&](const char* key) -> const Json* {
      const auto found = settings.find(key);
      return found == settings.end() || !found->contains("value") ? nullptr : &found->at("value");
    };
    for (const auto& [key, field] : numbers_)
      if (const Json* const found = value(key); found != nullptr && found->is_number())
        (own.*field)() = found->get<double>();
    if constexpr (HasBetas<Options>) {
      if (const auto found = settings.find("betas"); found != settings.end()) {
        const Json& pair = found->contains("tuple") ? found->at("tuple") : found->at("list");
        own.betas(std::make_tuple(pair.at(0).at("value").template get<double>(),
                                  pair.at(1).at("value").template get<double>()));
      }
    }
    for (const auto& [key, field] : flags_)
      if (const Json* const found = value(key); found != nullptr && found->is_boolean())
        (own.*field)() = found->get<bool>();
  }

 private:
  std::vector<TensorField<State>> tensors_;
  std::vector<NumberField<Options>> numbers_;
  std::vector<FlagField<Options>> flags_;
};

using Codecs = std::map<std::type_index, std::unique_ptr<OptimizerCodec>>;

template <typename State, typename Options>
std::unique_ptr<OptimizerCodec> AdamCodec() {
  return std::make_unique<Codec<State, Options>>(
      std::vector<TensorField<State>>{ORCA_FIELD(State, Tensor, exp_avg),
                                      ORCA_FIELD(State, Tensor, exp_avg_sq),
                                      ORCA_FIELD(State, Tensor, max_exp_avg_sq)},
      std::vector<NumberField<Options>>{ORCA_FIELD(Options, double, lr),
                                        ORCA_FIELD(Options, double, eps),
                                        ORCA_FIELD(Options, double, weight_decay)},
      std::vector<FlagField<Options>>{ORCA_FIELD(Options, bool, amsgrad)});
}

Codecs MakeCodecs() {
  using namespace torch::optim;
  Codecs codecs;
  codecs[typeid(SGD)] = std::make_unique<Codec<SGDParamState, SGDOptions>>(
      std::vector<TensorField<SGDParamState>>{ORCA_FIELD(SGDParamState, Tensor, momentum_buffer)},
      std::vector<NumberField<SGDOptions>>{
          ORCA_FIELD(SGDOptions, double, lr), ORCA_FIELD(SGDOptions, double, momentum),
          ORCA_FIELD(SGDOptions, double, dampening), ORCA_FIELD(SGDOptions, double, weight_decay)},
      std::vector<FlagField<SGDOptions>>{ORCA_FIELD(SGDOptions, bool, nesterov)});
  codecs[typeid(Adam)] = AdamCodec<AdamParamState, AdamOptions>();
  codecs[typeid(AdamW)] = AdamCodec<AdamWParamState, AdamWOptions>();
  codecs[typeid(RMSprop)] = std::make_unique<Codec<RMSpropParamState, RMSpropOptions>>(
      std::vector<TensorField<RMSpropParamState>>{
          ORCA_FIELD(RMSpropParamState, Tensor, square_avg),
          ORCA_FIELD(RMSpropParamState, Tensor, momentum_buffer),
          ORCA_FIELD(RMSpropParamState, Tensor, grad_avg)},
      std::vector<NumberField<RMSpropOptions>>{
          ORCA_FIELD(RMSpropOptions, double, lr), ORCA_FIELD(RMSpropOptions, double, alpha),
          ORCA_FIELD(RMSpropOptions, double, eps), ORCA_FIELD(RMSpropOptions, double, weight_decay),
          ORCA_FIELD(RMSpropOptions, double, momentum)},
      std::vector<FlagField<RMSpropOptions>>{ORCA_FIELD(RMSpropOptions, bool, centered)});
  codecs[typeid(Adagrad)] = std::make_unique<Codec<AdagradParamState, AdagradOptions>>(
      std::vector<TensorField<AdagradParamState>>{ORCA_FIELD(AdagradParamState, Tensor, sum)},
      std::vector<NumberField<AdagradOptions>>{
          ORCA_FIELD(AdagradOptions, double, lr), ORCA_FIELD(AdagradOptions, double, lr_decay),
          ORCA_FIELD(AdagradOptions, double, weight_decay),
          ORCA_FIELD(AdagradOptions, double, initial_accumulator_value),
          ORCA_FIELD(AdagradOptions, double, eps)},
      std::vector<FlagField<AdagradOptions>>{});
  return codecs;
}

}  // namespace

const OptimizerCodec* OptimizerCodec::Of(const torch::optim::Optimizer& optimizer) {
  static const Codecs codecs = MakeCodecs();
  const auto found = codecs.find(typeid(optimizer));
  return found == codecs.end() ? nullptr : found->second.get();
}

}  // namespace orca::nn
