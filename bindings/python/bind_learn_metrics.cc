#include "bind_learn_metrics.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "arrays.h"
#include "orca/core/error.h"
#include "orca/learn/metric.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace orca::bindings {
namespace {

using learn::Metric;
using learn::MetricArray;

/// An array of Python as the engine sees it.
class View {
 public:
  explicit View(const Input& array) {
    const auto dtype = EngineType(array.dtype());
    if (!dtype) {
      throw Error(Code::kInvalidArgument,
                  "the array has a type that the engine does not know; convert it to float32 or "
                  "int64");
    }
    for (std::size_t i = 0; i < array.ndim(); ++i)
      shape_.push_back(static_cast<std::int64_t>(array.shape(i)));
    view_ = {.dtype = *dtype, .shape = shape_, .data = AsBytes(array)};
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  const learn::ArrayView& get() const { return view_; }

 private:
  std::vector<std::int64_t> shape_;
  learn::ArrayView view_;
};

// An array of numpy that owns the values.
nb::object ToArray(std::vector<double> values) {
  auto kept = std::make_unique<std::vector<double>>(std::move(values));
  const std::vector<double>& array = *kept;
  const nb::capsule owner(kept.get(), [](void* pointer) noexcept {
    delete static_cast<std::vector<double>*>(pointer);
  });
  (void)kept.release();
  return nb::ndarray<nb::numpy, double>(const_cast<double*>(array.data()), {array.size()}, owner)
      .cast();
}

/// A metric that several threads of Python may use.
class PyMetric {
 public:
  PyMetric(const std::string& name, double threshold, bool zero_based_label, int threshold_num)
      : metric_(Metric::Make(name, {.threshold = threshold,
                                    .zero_based_label = zero_based_label,
                                    .threshold_num = threshold_num})) {}

  void Update(const Input& predictions, const Input& targets) {
    const View predicted(predictions);
    const View wanted(targets);
    WithoutGil([&] { metric_->Update(predicted.get(), wanted.get()); });
  }

  nb::bytes State() {
    std::vector<std::byte> state;
    WithoutGil([&] { state = metric_->State(); });
    return nb::bytes(state.data(), state.size());
  }

  void Merge(const nb::bytes& state) {
    const std::span bytes(static_cast<const std::byte*>(state.data()), state.size());
    WithoutGil([&] { metric_->Merge(bytes); });
  }

  /// The name and the number or array of each result.
  nb::list Value() {
    std::vector<MetricArray> results;
    WithoutGil([&] { results = metric_->Value(); });
    nb::list named;
    for (MetricArray& result : results) {
      const nb::object value = result.is_scalar ? nb::object(nb::float_(result.values.at(0)))
                                                : ToArray(std::move(result.values));
      named.append(nb::make_tuple(result.name, value));
    }
    return named;
  }

 private:
  template <typename Call>
  void WithoutGil(Call call) {
    const nb::gil_scoped_release released;
    const std::lock_guard lock(mutex_);
    call();
  }

  std::unique_ptr<Metric> metric_;  // used with mutex_ held
  std::mutex mutex_;
};

}  // namespace

void BindMetrics(nb::module_& m) {
  nb::class_<PyMetric>(m, "Metric")
      .def(nb::init<const std::string&, double, bool, int>(), "name"_a, "threshold"_a = 0.5,
           "zero_based_label"_a = true, "threshold_num"_a = 0)
      .def("update", &PyMetric::Update, "predictions"_a, "targets"_a)
      .def("state", &PyMetric::State)
      .def("merge", &PyMetric::Merge, "state"_a)
      .def("value", &PyMetric::Value);
  m.def("metric_names", &Metric::Names);
}

}  // namespace orca::bindings
