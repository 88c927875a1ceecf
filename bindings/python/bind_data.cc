#include "bind_data.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
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
#include "orca/data/arrow.h"
#include "orca/data/csv.h"
#include "orca/data/order.h"
#include "orca/data/shared_block.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace orca::bindings {
namespace {

using data::ArrayStore;
using data::ColumnSpec;
using data::Shard;
using data::ShardHold;
using data::ShardHome;

constexpr std::size_t kMaxDimensions = 64;  // as many as numpy has

std::uint64_t RowsOf(const Input& array, const std::string& name) {
  if (array.ndim() > 0) return array.shape(0);
  throw Error(Code::kInvalidArgument,
              "'" + name + "' is a single value; its first dimension must be the rows");
}

// The dtype and the shape of a row, for messages: "uint8 (28, 28)".
std::string Describe(const ColumnSpec& spec) {
  if (spec.kind != data::ColumnKind::kFixed)
    return spec.kind == data::ColumnKind::kString ? "string" : "bytes";
  std::string text = std::string(Name(spec.dtype)) + " (";
  for (std::size_t i = 0; i < spec.row_shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(spec.row_shape[i]);
  }
  return text + ")";
}

/// Texts of Python, as a column holds them.
struct Texts {
  std::vector<std::byte> values;
  std::vector<std::int64_t> offsets{0};
  std::vector<std::byte> validity;

  void Add(std::span<const std::byte> text) {
    values.insert(values.end(), text.begin(), text.end());
    Close(true);
  }
  void AddMissing() {
    any_missing = true;
    Close(false);
  }
  void Close(bool there) {
    const std::size_t row = offsets.size() - 1;
    if (row % 8 == 0) validity.push_back(std::byte{0});
    if (there) validity.back() |= std::byte{1} << (row % 8);
    offsets.push_back(static_cast<std::int64_t>(values.size()));
  }
  bool any_missing = false;
};

/// What goes into a shard. Keeps the memory of all columns.
class Leaves {
 public:
  /// A leaf is an array; an array and its validity bits; a list of texts; or the values, offsets
  /// and validity bits of texts.
  Leaves(const std::vector<std::string>& names, const nb::list& leaves) {
    for (std::size_t c = 0; c < names.size(); ++c) Add(names[c], leaves[c]);
  }

  const std::vector<ColumnSpec>& specs() const { return specs_; }
  const std::vector<data::Column>& columns() const { return columns_; }
  std::uint64_t rows() const { return rows_; }

 private:
  void Add(const std::string& name, const nb::handle leaf) {
    ColumnSpec spec{.name = name};
    data::Column column;
    std::uint64_t rows = 0;
    if (nb::isinstance<nb::list>(leaf)) {
      rows = AddTexts(nb::borrow<nb::list>(leaf), spec, column);
    } else if (nb::isinstance<nb::tuple>(leaf)) {
      rows = AddParts(nb::borrow<nb::tuple>(leaf), spec, column);
    } else {
      rows = AddArray(Keep(leaf), spec, column);
    }
    if (specs_.empty()) rows_ = rows;
    if (rows != rows_) {
      throw Error(Code::kInvalidArgument,
                  "'" + name + "' has " + std::to_string(rows) + " rows, '" + specs_[0].name +
                      "' has " + std::to_string(rows_) + "; all need the same number of rows");
    }
    specs_.push_back(std::move(spec));
    columns_.push_back(column);
  }

  const Input& Keep(const nb::handle array) {
    return *inputs_.emplace_back(std::make_unique<Input>(nb::cast<Input>(array)));
  }

  static std::uint64_t AddArray(const Input& array, ColumnSpec& spec, data::Column& column) {
    const auto dtype = EngineType(array.dtype());
    if (!dtype) {
      throw Error(Code::kInvalidArgument,
                  "'" + spec.name +
                      "' has a dtype that cannot be stored; use float64, float32, float16, "
                      "bfloat16, int8, int16, int32, int64, uint8 or bool");
    }
    const std::uint64_t rows = RowsOf(array, spec.name);
    if (array.ndim() > kMaxDimensions) {
      throw Error(Code::kInvalidArgument, "'" + spec.name + "' has " +
                                              std::to_string(array.ndim()) +
                                              " dimensions; give 64 or fewer");
    }
    spec.dtype = *dtype;
    for (std::size_t i = 1; i < array.ndim(); ++i)
      spec.row_shape.push_back(static_cast<std::int64_t>(array.shape(i)));
    column.values = AsBytes(array);
    return rows;
  }

  std::uint64_t AddTexts(const nb::list& texts, ColumnSpec& spec, data::Column& column) {
    Texts& packed = *texts_.emplace_back(std::make_unique<Texts>());
    spec.kind = data::ColumnKind::kString;
    bool first = true;
    for (const nb::handle text : texts) {
      if (text.is_none()) {
        packed.AddMissing();
        continue;
      }
      const bool is_bytes = PyBytes_Check(text.ptr());
      if (first && is_bytes) spec.kind = data::ColumnKind::kBytes;
      first = false;
      Py_ssize_t size = 0;
      const char* memory = nullptr;
      char* bytes = nullptr;
      if (is_bytes && spec.kind == data::ColumnKind::kBytes) {
        if (PyBytes_AsStringAndSize(text.ptr(), &bytes, &size) != 0) throw nb::python_error();
        memory = bytes;
      } else if (PyUnicode_Check(text.ptr()) && spec.kind == data::ColumnKind::kString) {
        memory = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
        if (memory == nullptr) throw nb::python_error();
      } else {
        throw Error(Code::kInvalidArgument,
                    "'" + spec.name + "' mixes texts with " +
                        nb::cast<std::string>(nb::str(text.type().attr("__name__"))) +
                        "; give str or bytes only, and None where a value is missing");
      }
      packed.Add(std::as_bytes(std::span(memory, static_cast<std::size_t>(size))));
    }
    column = {.values = packed.values, .offsets = packed.offsets};
    if (packed.any_missing) column.validity = packed.validity;
    return texts.size();
  }

  // (values, validity), or (values, offsets, validity or None, whether they are bytes).
  std::uint64_t AddParts(const nb::tuple& parts, ColumnSpec& spec, data::Column& column) {
    std::uint64_t rows = 0;
    if (parts.size() == 2) {
      rows = AddArray(Keep(parts[0]), spec, column);
      column.validity = AsBytes(Keep(parts[1]));
      return rows;
    }
    spec.kind = nb::cast<bool>(parts[3]) ? data::ColumnKind::kBytes : data::ColumnKind::kString;
    const auto offsets = AsBytes(Keep(parts[1]));
    column.values = AsBytes(Keep(parts[0]));
    column.offsets = {reinterpret_cast<const std::int64_t*>(offsets.data()),
                      offsets.size() / sizeof(std::int64_t)};
    if (!parts[2].is_none()) column.validity = AsBytes(Keep(parts[2]));
    return column.offsets.size() - 1;
  }

  std::vector<ColumnSpec> specs_;
  std::vector<data::Column> columns_;
  std::uint64_t rows_ = 0;
  std::vector<std::unique_ptr<Input>> inputs_;
  std::vector<std::unique_ptr<Texts>> texts_;
};

std::shared_ptr<const Shard> PutShard(const std::shared_ptr<ShardHome>& home,
                                      const std::vector<std::string>& names,
                                      const nb::list& leaves) {
  const Leaves all(names, leaves);
  const nb::gil_scoped_release released;
  return Shard::Put(home, all.specs(), all.rows(), all.columns());
}

std::shared_ptr<const Shard> CopyShard(const std::shared_ptr<const Shard>& shard,
                                       const std::shared_ptr<ShardHome>& home) {
  const nb::gil_scoped_release released;
  return Shard::Put(home, shard->specs(), shard->rows(), shard->columns());
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

nb::object MakeBytes(std::span<const std::byte> bytes, const nb::capsule& owner) {
  return nb::ndarray<nb::numpy, nb::ro, std::uint8_t>(
             reinterpret_cast<const std::uint8_t*>(bytes.data()), {bytes.size()}, owner)
      .cast();
}

nb::object MakeValidity(const data::Column& column, const nb::capsule& owner) {
  return column.validity.empty() ? nb::object(nb::none()) : MakeBytes(column.validity, owner);
}

// (values, offsets, validity or None, whether they are bytes)
nb::object MakeTexts(const data::Column& column, const ColumnSpec& spec, const nb::capsule& owner) {
  return nb::make_tuple(MakeBytes(column.values, owner),
                        nb::ndarray<nb::numpy, nb::ro, std::int64_t>(column.offsets.data(),
                                                                     {column.offsets.size()}, owner)
                            .cast(),
                        MakeValidity(column, owner), spec.kind == data::ColumnKind::kBytes);
}

/// An array; of texts and of columns with missing values its parts, as Leaves takes them.
template <typename Array>
nb::object MakeColumn(const data::Column& column, std::uint64_t rows, const ColumnSpec& spec,
                      const nb::capsule& owner, const nb::object& from_dlpack) {
  if (spec.kind != data::ColumnKind::kFixed) return MakeTexts(column, spec, owner);
  const std::byte* const memory = column.values.data();
  nb::object array = from_dlpack.is_none()
                         ? MakeArray<Array>(memory, rows, spec, owner)
                         : from_dlpack(MakeArray<nb::ndarray<>>(memory, rows, spec, owner));
  if (column.validity.empty()) return array;
  return nb::make_tuple(array, MakeValidity(column, owner));
}

// What is written to arrays that can be written stays in this process, and in this mapping.
nb::list ViewShard(const std::shared_ptr<const Shard>& self, const nb::object& from_dlpack,
                   bool writable) {
  const nb::capsule owner = Keep(self);
  nb::list columns;
  for (std::size_t c = 0; c < self->specs().size(); ++c) {
    const data::Column& column = self->columns()[c];
    const ColumnSpec& spec = self->specs()[c];
    columns.append(writable ? MakeColumn<nb::ndarray<nb::numpy>>(column, self->rows(), spec, owner,
                                                                 from_dlpack)
                            : MakeColumn<nb::ndarray<nb::numpy, nb::ro>>(column, self->rows(), spec,
                                                                         owner, from_dlpack));
  }
  return columns;
}

// What each column is, in words: "uint8 (28, 28)", "string"; and whether values may be missing.
nb::list DescribeShard(const std::shared_ptr<const Shard>& self) {
  nb::list described;
  for (std::size_t c = 0; c < self->specs().size(); ++c) {
    const ColumnSpec& spec = self->specs()[c];
    described.append(
        nb::make_tuple(spec.name, Describe(spec), !self->columns()[c].validity.empty()));
  }
  return described;
}

// --- Arrow, by the names that its capsules have in Python

template <typename Struct>
nb::capsule Capsule(std::unique_ptr<Struct> filled, const char* name) {
  return nb::steal<nb::capsule>(
      PyCapsule_New(filled.release(), name, [](PyObject* capsule) noexcept {
        auto* const held =
            static_cast<Struct*>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)));
        if (held->release != nullptr) held->release(held);
        delete held;
      }));
}

template <typename Table>
nb::tuple ToArrow(const std::shared_ptr<const Table>& self) {
  auto schema = std::make_unique<ArrowSchema>();
  auto array = std::make_unique<ArrowArray>();
  data::ExportArrow(self, schema.get(), array.get());
  return nb::make_tuple(Capsule(std::move(schema), "arrow_schema"),
                        Capsule(std::move(array), "arrow_array"));
}

template <typename Struct>
Struct* FromCapsule(const nb::handle capsule, const char* name) {
  void* const pointer = PyCapsule_GetPointer(capsule.ptr(), name);
  if (pointer == nullptr) throw nb::python_error();
  return static_cast<Struct*>(pointer);
}

std::shared_ptr<const Shard> FromArrow(const std::shared_ptr<ShardHome>& home,
                                       const nb::handle schema, const nb::handle array) {
  const auto* const described = FromCapsule<ArrowSchema>(schema, "arrow_schema");
  const auto* const filled = FromCapsule<ArrowArray>(array, "arrow_array");
  const nb::gil_scoped_release released;
  return data::PutArrow(home, *described, *filled);
}

// --- CSV

using CsvColumns = std::vector<std::tuple<std::string, data::CsvKind>>;

// None of what only another reader may know.
std::shared_ptr<data::CsvTable> ParseCsv(const Input& text, std::size_t begin,
                                         const nb::dict& dialect, const CsvColumns& columns,
                                         const std::shared_ptr<data::CsvMemory>& memory) {
  const auto words = [&](const char* name) {
    return nb::cast<std::vector<std::string>>(dialect[name]);
  };
  const auto quote = nb::cast<std::string>(dialect["quote"]);
  const data::CsvDialect wording{.separator = nb::cast<char>(dialect["separator"]),
                                 .quote = quote.empty() ? '\0' : quote[0],
                                 .has_quote = !quote.empty(),
                                 .missing = words("missing"),
                                 .yes = words("yes"),
                                 .no = words("no")};
  std::vector<data::CsvColumn> wanted;
  for (const auto& [name, kind] : columns) wanted.push_back({name, kind});
  const auto bytes = AsBytes(text);
  const nb::gil_scoped_release released;
  try {
    return std::const_pointer_cast<data::CsvTable>(
        data::ParseCsv(bytes.subspan(std::min(begin, bytes.size())), wording, wanted, memory));
  } catch (const Error& error) {
    if (error.code() != Code::kUnavailable) throw;
    return nullptr;
  }
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
      nb::object column = MakeColumn<nb::ndarray<nb::numpy>>(batch->columns[c], batch->rows,
                                                             specs_[c], owner, from_dlpack_);
      PyTuple_SetItem(arrays.ptr(), static_cast<Py_ssize_t>(c), column.release().ptr());
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
                             .ranks = small("ranks"),
                             .least_rows = number("least_rows"),
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
  const nb::class_<ShardHome> homes(m, "ShardHome");
  m.def("shard_shelf", []() -> std::shared_ptr<ShardHome> { return data::ShardShelf::Create(); });
  nb::class_<ShardHold>(m, "ShardHold")
      .def_static(
          "take",
          [](std::shared_ptr<ShardHome> home, std::uint64_t id) {
            return std::const_pointer_cast<ShardHold>(ShardHold::Take(std::move(home), id));
          },
          "home"_a, "id"_a)
      .def_prop_ro("id", &ShardHold::id)
      .def("lives_in", [](const ShardHold& self,
                          const std::shared_ptr<ShardHome>& home) { return self.home() == home; })
      .def("open", [](const std::shared_ptr<ShardHold>& self) {
        const nb::gil_scoped_release released;
        return std::const_pointer_cast<Shard>(Shard::Open(self));
      });
  const auto writable = [](std::shared_ptr<const Shard> shard) {
    return std::const_pointer_cast<Shard>(shard);
  };
  nb::class_<Shard>(m, "Shard")
      .def_static(
          "put",
          [writable](const std::shared_ptr<ShardHome>& home, const std::vector<std::string>& names,
                     const nb::list& leaves) { return writable(PutShard(home, names, leaves)); },
          "home"_a, "names"_a, "leaves"_a)
      .def_static(
          "from_arrow",
          [writable](const std::shared_ptr<ShardHome>& home, const nb::object& schema,
                     const nb::object& array) { return writable(FromArrow(home, schema, array)); },
          "home"_a, "schema"_a, "array"_a)
      .def("copy_to",
           [writable](const std::shared_ptr<Shard>& self, const std::shared_ptr<ShardHome>& home) {
             return writable(CopyShard(self, home));
           })
      .def("to_arrow", [](const std::shared_ptr<Shard>& self) { return ToArrow<Shard>(self); })
      .def_prop_ro(
          "hold", [](const Shard& self) { return std::const_pointer_cast<ShardHold>(self.hold()); })
      .def_prop_ro("rows", &Shard::rows)
      .def_prop_ro("nbytes", &Shard::size)
      .def("describe", [](const std::shared_ptr<Shard>& self) { return DescribeShard(self); })
      .def(
          "view",
          [](const std::shared_ptr<Shard>& self, const nb::object& from_dlpack, bool can_write) {
            return ViewShard(self, from_dlpack, can_write);
          },
          "from_dlpack"_a.none(), "writable"_a = false);
  nb::enum_<data::CsvKind>(m, "CsvKind")
      .value("INFERRED", data::CsvKind::kInferred)
      .value("SKIPPED", data::CsvKind::kSkipped)
      .value("MISSING", data::CsvKind::kMissing)
      .value("INT64", data::CsvKind::kInt64)
      .value("FLOAT64", data::CsvKind::kFloat64)
      .value("BOOL", data::CsvKind::kBool)
      .value("STRING", data::CsvKind::kString)
      .value("UINT64", data::CsvKind::kUInt64);
  nb::class_<data::CsvTable>(m, "CsvTable")
      .def_prop_ro("rows", &data::CsvTable::rows)
      .def_prop_ro("kinds", &data::CsvTable::kinds)
      .def_prop_ro("missing", &data::CsvTable::missing)
      .def(
          "__arrow_c_array__",
          [](const std::shared_ptr<data::CsvTable>& self, const nb::object&) {
            return ToArrow<data::CsvTable>(self);
          },
          "requested_schema"_a.none() = nb::none());
  nb::class_<data::CsvMemory>(m, "CsvMemory").def(nb::new_([] {
    return data::CsvMemory::Create();
  }));
  m.def(
      "share_of",
      [](std::uint64_t rows, int rank, int world_size, std::uint64_t least_rows) {
        const data::RowRange share =
            data::ShareOf(rows, {.rank = rank, .world_size = world_size, .least_rows = least_rows});
        return nb::make_tuple(share.begin, share.end);
      },
      "rows"_a, "rank"_a, "world_size"_a, "least_rows"_a = 0);
  m.def("parse_csv", &ParseCsv, "text"_a, "begin"_a, "dialect"_a, "columns"_a, "memory"_a);
  nb::class_<data::SharedBlock>(m, "SharedBlock")
      .def_static(
          "create",
          [](const std::shared_ptr<ShardHome>& home, std::size_t bytes) {
            const nb::gil_scoped_release released;
            return data::SharedBlock::Create(home, bytes);
          },
          "home"_a, "bytes"_a)
      .def_static(
          "open",
          [](const std::shared_ptr<ShardHold>& hold) {
            const nb::gil_scoped_release released;
            return data::SharedBlock::Open(hold);
          },
          "hold"_a)
      .def_prop_ro("hold",
                   [](const data::SharedBlock& self) {
                     return std::const_pointer_cast<ShardHold>(self.hold());
                   })
      .def("view", [](const std::shared_ptr<data::SharedBlock>& self) {
        const auto bytes = self->bytes();
        return nb::ndarray<nb::numpy, std::uint8_t>(bytes.data(), {bytes.size()}, Keep(self))
            .cast();
      });
  nb::class_<ArrayStore>(m, "ArrayStore")
      .def_static(
          "of", [](const Shard& first) { return ArrayStore::Create(first.specs()); }, "first"_a)
      .def("add", [](ArrayStore& self, const std::shared_ptr<Shard>& shard) { self.Add(shard); })
      .def("rows", &ArrayStore::rows)
      .def("batches", &Batches, "numbers"_a, "shuffle"_a, "conversions"_a, "from_dlpack"_a.none());
}

}  // namespace orca::bindings
