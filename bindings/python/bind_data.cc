#include "bind_data.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "orca/core/error.h"
#include "orca/data/array_store.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace orca::bindings {
namespace {

using data::ArrayStore;
using data::ColumnSpec;

constexpr std::size_t kMaxDimensions = 64;  // as many as numpy has

std::uint64_t RowsOf(const Input& array, const std::string& name) {
  if (array.ndim() > 0) return array.shape(0);
  throw Error(Code::kInvalidArgument,
              "'" + name + "' is a single value; its first dimension must be the rows");
}

// The dtype and the shape of a row, for messages: "uint8 (28, 28)".
std::string Describe(const ColumnSpec& spec) {
  std::string text = std::string(Name(spec.dtype)) + " (";
  for (std::size_t i = 0; i < spec.row_shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(spec.row_shape[i]);
  }
  return text + ")";
}

std::string Describe(const Input& array) {
  const auto dtype = EngineType(array.dtype());
  ColumnSpec spec{.name = {}, .dtype = dtype.value_or(DType::kFloat32), .row_shape = {}};
  for (std::size_t i = 1; i < array.ndim(); ++i) {
    spec.row_shape.push_back(static_cast<std::int64_t>(array.shape(i)));
  }
  return dtype ? Describe(spec) : "a dtype that cannot be stored";
}

std::unique_ptr<ArrayStore> MakeStore(const std::vector<std::string>& names,
                                      const std::vector<Input>& arrays) {
  std::vector<ColumnSpec> specs;
  for (std::size_t c = 0; c < arrays.size(); ++c) {
    const auto dtype = EngineType(arrays[c].dtype());
    if (!dtype) {
      throw Error(Code::kInvalidArgument,
                  "'" + names[c] +
                      "' has a dtype that cannot be stored; use float64, float32, float16, "
                      "bfloat16, int8, int16, int32, int64, uint8 or bool");
    }
    RowsOf(arrays[c], names[c]);
    if (arrays[c].ndim() > kMaxDimensions) {
      throw Error(Code::kInvalidArgument, "'" + names[c] + "' has " +
                                              std::to_string(arrays[c].ndim()) +
                                              " dimensions; give 64 or fewer");
    }
    ColumnSpec spec{.name = names[c], .dtype = *dtype, .row_shape = {}};
    for (std::size_t i = 1; i < arrays[c].ndim(); ++i) {
      spec.row_shape.push_back(static_cast<std::int64_t>(arrays[c].shape(i)));
    }
    specs.push_back(std::move(spec));
  }
  return ArrayStore::Create(std::move(specs));
}

void Put(ArrayStore& self, const std::vector<Input>& arrays) {
  std::vector<std::span<const std::byte>> columns;
  for (std::size_t c = 0; c < arrays.size() && c < self.columns().size(); ++c) {
    const ColumnSpec& spec = self.columns()[c];
    bool same = EngineType(arrays[c].dtype()) == spec.dtype &&
                arrays[c].ndim() == spec.row_shape.size() + 1;
    for (std::size_t i = 0; same && i < spec.row_shape.size(); ++i) {
      same = static_cast<std::int64_t>(arrays[c].shape(i + 1)) == spec.row_shape[i];
    }
    if (!same) {
      throw Error(Code::kInvalidArgument,
                  "'" + spec.name + "' has another dtype or shape than in the first put: " +
                      Describe(arrays[c]) + ", not " + Describe(spec) + "; convert it");
    }
    columns.push_back(AsBytes(arrays[c]));
  }
  const std::uint64_t rows = arrays.empty() ? 0 : RowsOf(arrays[0], self.columns()[0].name);
  const nb::gil_scoped_release released;
  self.Put(rows, columns);
}

// An object that keeps `owner` alive.
template <typename Owner>
nb::capsule Keep(const std::shared_ptr<Owner>& owner) {
  auto kept = std::make_unique<std::shared_ptr<Owner>>(owner);
  nb::capsule capsule(kept.get(), [](void* pointer) noexcept {
    delete static_cast<std::shared_ptr<Owner>*>(pointer);
  });
  (void)kept.release();
  return capsule;
}

// An array over memory that `owner` keeps.
template <typename Array>
nb::object MakeArray(const std::byte* memory, std::uint64_t rows, const ColumnSpec& spec,
                     const nb::capsule& owner) {
  std::array<std::size_t, kMaxDimensions> shape{rows};
  for (std::size_t i = 0; i < spec.row_shape.size(); ++i) {
    shape[i + 1] = static_cast<std::size_t>(spec.row_shape[i]);
  }
  return Array(const_cast<std::byte*>(memory), spec.row_shape.size() + 1, shape.data(), owner,
               nullptr, ArrayType(spec.dtype))
      .cast();
}

nb::object View(const ArrayStore& self, std::size_t shard, std::size_t column) {
  const auto memory = self.View(shard, column);
  return MakeArray<nb::ndarray<nb::numpy, nb::ro>>(memory.get(), self.rows_of(shard),
                                                   self.columns()[column], Keep(memory));
}

/// A loader, and what its batches look like.
class PyLoader {
 public:
  /// `from_dlpack` makes a framework's array of a DLPack capsule; without it, batches are numpy's.
  PyLoader(std::unique_ptr<data::BatchLoader> loader, std::vector<ColumnSpec> specs,
           nb::object from_dlpack)
      : loader_(std::move(loader)),
        specs_(std::move(specs)),
        from_dlpack_(std::move(from_dlpack)) {}

  std::uint64_t steps() const { return loader_->steps(); }

  /// The arrays of the next batch and its cursor, in one tuple.
  nb::tuple Next() {
    std::shared_ptr<const data::Batch> batch;
    {
      const nb::gil_scoped_release released;
      const std::lock_guard lock(mutex_);
      batch = loader_->Next();
    }
    if (!batch) throw nb::stop_iteration();
    const nb::capsule owner = Keep(batch);
    auto arrays = nb::steal<nb::tuple>(PyTuple_New(static_cast<Py_ssize_t>(specs_.size())));
    if (!arrays.is_valid()) throw nb::python_error();
    for (std::size_t c = 0; c < specs_.size(); ++c) {
      const std::byte* memory = batch->columns[c].data();
      nb::object array =
          from_dlpack_.is_none()
              ? MakeArray<nb::ndarray<nb::numpy>>(memory, batch->rows, specs_[c], owner)
              : from_dlpack_(MakeArray<nb::ndarray<>>(memory, batch->rows, specs_[c], owner));
      PyTuple_SetItem(arrays.ptr(), static_cast<Py_ssize_t>(c), array.release().ptr());
    }
    return nb::make_tuple(arrays, batch->cursor);
  }

 private:
  std::unique_ptr<data::BatchLoader> loader_;  // used with mutex_ held
  std::vector<ColumnSpec> specs_;              // of the batches: conversions are applied
  nb::object from_dlpack_;
  std::mutex mutex_;  // two threads of Python may ask at the same time
};

using Conversion = std::optional<std::tuple<float, float>>;  // scale, shift

std::unique_ptr<PyLoader> Batches(const ArrayStore& self, const nb::dict& numbers, bool shuffle,
                                  const std::vector<Conversion>& conversions,
                                  const nb::object& from_dlpack) {
  const auto number = [&](const char* name) { return nb::cast<std::uint64_t>(numbers[name]); };
  const auto small = [&](const char* name) { return nb::cast<int>(numbers[name]); };
  data::BatchOptions options{.batch_size = number("batch_size"),
                             .shuffle = shuffle,
                             .seed = number("seed"),
                             .epoch = number("epoch"),
                             .rank = small("rank"),
                             .world_size = small("world_size"),
                             .start = number("start"),
                             .block_rows = number("block_rows"),
                             .window_blocks = number("window_blocks"),
                             .ahead = small("ahead"),
                             .threads = small("threads"),
                             .conversions = {}};
  std::vector<ColumnSpec> specs = self.columns();
  for (std::size_t c = 0; c < conversions.size(); ++c) {
    auto& conversion = options.conversions.emplace_back();
    if (!conversions[c]) continue;
    conversion = data::ToFloat32{std::get<0>(*conversions[c]), std::get<1>(*conversions[c])};
    if (c < specs.size()) specs[c].dtype = DType::kFloat32;
  }
  return std::make_unique<PyLoader>(self.Batches(options), std::move(specs), from_dlpack);
}

}  // namespace

void BindData(nb::module_& m) {
  nb::class_<PyLoader>(m, "BatchLoader")
      .def("steps", &PyLoader::steps)
      .def("next", &PyLoader::Next);
  nb::class_<ArrayStore>(m, "ArrayStore")
      .def_static("make", &MakeStore, "names"_a, "arrays"_a)
      .def("put", &Put, "arrays"_a)
      .def("rows", &ArrayStore::rows)
      .def("shards", &ArrayStore::shards)
      .def("view", &View, "shard"_a, "column"_a)
      .def("batches", &Batches, "numbers"_a, "shuffle"_a, "conversions"_a, "from_dlpack"_a.none());
}

}  // namespace orca::bindings
