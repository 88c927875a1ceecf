#include "bind_learn_update.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "orca/core/error.h"
#include "orca/learn/update.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace orca::bindings {
namespace {

using learn::UpdateKind;
using learn::UpdateRule;
using learn::UpdateSpan;

constexpr std::array kKinds = {std::pair("sgd", UpdateKind::kSgd),
                               std::pair("adam", UpdateKind::kAdam),
                               std::pair("adamw", UpdateKind::kAdamW)};

UpdateKind KindOf(const std::string& name) {
  for (const auto& [known, kind] : kKinds)
    if (name == known) return kind;
  throw Error(Code::kInvalidArgument, "'" + name + "' is not a kind; give sgd, adam or adamw");
}

/// Arrays of one type and one number of elements.
class Arrays {
 public:
  explicit Arrays(const Input& first) : count_(first.size()) {
    const auto dtype = EngineType(first.dtype());
    if (!dtype)
      throw Error(Code::kInvalidArgument, "the type is unknown; convert to float32 or float64");
    dtype_ = *dtype;
  }
  DType dtype() const { return dtype_; }
  std::size_t count() const { return count_; }

  const void* Look(const Input& array) const {
    Check(array);
    return AsBytes(array).data();
  }
  UpdateSpan Span(const Output& weights, const std::vector<Output>& states,
                  std::size_t wanted) const {
    if (states.size() != wanted)
      throw Error(Code::kInvalidArgument, std::to_string(states.size()) +
                                              " states were given; the rule has " +
                                              std::to_string(wanted) + ": give each");
    Check(weights);
    UpdateSpan span{.weights = AsBytes(weights).data()};
    for (std::size_t i = 0; i < states.size(); ++i) {
      Check(states[i]);
      span.states[i] = AsBytes(states[i]).data();
    }
    return span;
  }

 private:
  template <typename Array>
  void Check(const Array& array) const {
    if (EngineType(array.dtype()) != dtype_ || array.size() != count_)
      throw Error(Code::kInvalidArgument,
                  "an array of " + std::to_string(array.size()) + " elements is not one of " +
                      std::to_string(count_) + " of " + Name(dtype_) +
                      "; give gradients, weights and states of one type and size");
  }

  DType dtype_ = DType::kFloat32;
  std::size_t count_;
};

void Apply(const UpdateRule& rule, const std::vector<Input>& gradients,
           const std::vector<double>& factors, const Output& weights,
           const std::vector<Output>& states,
           const std::optional<std::pair<Output, std::vector<Output>>>& to) {
  if (gradients.empty())
    throw Error(Code::kInvalidArgument, "an update needs a gradient; give at least one");
  const Arrays arrays(gradients[0]);
  std::vector<const void*> from;
  for (const Input& gradient : gradients) from.push_back(arrays.Look(gradient));
  const std::size_t wanted = learn::StateCount(rule);
  const UpdateSpan here = arrays.Span(weights, states, wanted);
  const UpdateSpan there = to ? arrays.Span(to->first, to->second, wanted) : here;
  const nb::gil_scoped_release released;
  learn::Update(rule, arrays.dtype(), from, factors, here, there, arrays.count());
}

}  // namespace

void BindUpdate(nb::module_& m) {
  nb::class_<UpdateRule>(m, "Update", "One step of an optimizer, with the options of torch.optim.")
      .def("__init__", [](UpdateRule* self,
                          const std::string& kind) { new (self) UpdateRule{.kind = KindOf(kind)}; })
      .def_rw("nesterov", &UpdateRule::nesterov)
      .def_rw("amsgrad", &UpdateRule::amsgrad)
      .def_rw("maximize", &UpdateRule::maximize)
      .def_rw("first", &UpdateRule::first)
      .def_rw("lr", &UpdateRule::lr)
      .def_rw("weight_decay", &UpdateRule::weight_decay)
      .def_rw("momentum", &UpdateRule::momentum)
      .def_rw("dampening", &UpdateRule::dampening)
      .def_rw("beta1", &UpdateRule::beta1)
      .def_rw("beta2", &UpdateRule::beta2)
      .def_rw("eps", &UpdateRule::eps)
      .def_rw("step", &UpdateRule::step)
      .def_rw("scale", &UpdateRule::scale)
      .def_rw("clips", &UpdateRule::clips)
      .def_rw("clip_low", &UpdateRule::clip_low)
      .def_rw("clip_high", &UpdateRule::clip_high)
      .def_prop_ro("state_count", &learn::StateCount)
      .def("apply", &Apply, "gradients"_a, "factors"_a, "weights"_a, "states"_a,
           "to"_a = nb::none(),
           "Make the step for weights and states, in place or to (weights, states).");
}

}  // namespace orca::bindings
