#include "bind_io.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "orca/core/error.h"
#include "orca/io/array_file.h"
#include "orca/io/async_writer.h"
#include "orca/io/atomic_file.h"
#include "orca/io/checkpoint_store.h"
#include "orca/io/event_file.h"
#include "orca/io/safetensors.h"
#include "orca/io/torch_file.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace orca::bindings {
namespace {

using io::Path;
using io::Tensor;
using io::TensorType;

/// Objects of Python that the engine's threads may let go of.
class Kept {
 public:
  explicit Kept(nb::list objects) : objects_(std::move(objects)) {}
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() {
    const nb::gil_scoped_acquire acquired;
    objects_.reset();
  }

 private:
  nb::object objects_;
};

TensorType TypeOf(const Input& array, const std::string& name) {
  if (const auto dtype = EngineType(array.dtype())) return io::ToTensorType(*dtype);
  const auto code = static_cast<nb::dlpack::dtype_code>(array.dtype().code);
  const auto bits = array.dtype().bits;
  if (code == nb::dlpack::dtype_code::UInt && bits == 16) return TensorType::kUInt16;
  if (code == nb::dlpack::dtype_code::UInt && bits == 32) return TensorType::kUInt32;
  if (code == nb::dlpack::dtype_code::UInt && bits == 64) return TensorType::kUInt64;
  if (code == nb::dlpack::dtype_code::Complex && bits == 64) return TensorType::kComplex64;
  throw Error(Code::kInvalidArgument,
              "tensor '" + name +
                  "' has a dtype that files do not hold as an array; give (name of the type, "
                  "shape, array of its bytes)");
}

/// Tensors of a dict, and what keeps their memory.
struct Tensors {
  std::vector<Tensor> tensors;
  nb::list kept;
};

using Triple = std::tuple<std::string, std::vector<std::int64_t>, Input>;

Tensor ReadTensor(const std::string& name, const nb::handle given, nb::list& kept) {
  Tensor tensor{.spec = {.name = name, .shape = {}}, .data = {}};
  kept.append(given);
  if (nb::isinstance<nb::tuple>(given)) {
    const auto [type, shape, bytes] = nb::cast<Triple>(given);
    tensor.spec.type = io::TypeNamed(type);
    tensor.spec.shape = shape;
    tensor.data = AsBytes(bytes);
    return tensor;
  }
  const auto array = nb::cast<Input>(given);
  tensor.spec.type = TypeOf(array, name);
  for (std::size_t i = 0; i < array.ndim(); ++i)
    tensor.spec.shape.push_back(static_cast<std::int64_t>(array.shape(i)));
  tensor.data = AsBytes(array);
  return tensor;
}

Tensors ReadTensors(const nb::dict& given) {
  Tensors read;
  for (const auto& [name, tensor] : given)
    read.tensors.push_back(ReadTensor(nb::cast<std::string>(name), tensor, read.kept));
  return read;
}

// An object that keeps `owner` alive.
nb::capsule Keep(const std::shared_ptr<const void>& owner) {
  auto kept = std::make_unique<std::shared_ptr<const void>>(owner);
  nb::capsule capsule(kept.get(), [](void* pointer) noexcept {
    delete static_cast<std::shared_ptr<const void>*>(pointer);
  });
  (void)kept.release();
  return capsule;
}

// (name of the type, shape, its bytes): a view that may be written to without changing the file.
nb::tuple MakeTriple(const Tensor& tensor, const nb::capsule& owner) {
  nb::list shape;
  for (const std::int64_t extent : tensor.spec.shape) shape.append(extent);
  auto* const memory =
      const_cast<std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(tensor.data.data()));
  const nb::object bytes =
      nb::ndarray<nb::numpy, std::uint8_t>(memory, {tensor.data.size()}, owner).cast();
  return nb::make_tuple(io::Name(tensor.spec.type), nb::tuple(shape), bytes);
}

nb::dict MakeDict(const io::SafetensorsFile& file) {
  const nb::capsule owner = Keep(file.owner());
  nb::dict tensors;
  for (const Tensor& tensor : file.tensors())
    tensors[nb::str(tensor.spec.name.c_str(), tensor.spec.name.size())] = MakeTriple(tensor, owner);
  return tensors;
}

void SaveSafetensors(const Path& path, const nb::dict& tensors, const io::Metadata& metadata) {
  const Tensors read = ReadTensors(tensors);
  const nb::gil_scoped_release released;
  io::WriteSafetensors(path, read.tensors, metadata);
}

nb::tuple LoadSafetensors(const Path& path) {
  const auto file = [&] {
    const nb::gil_scoped_release released;
    return io::SafetensorsFile::Open(path);
  }();
  return nb::make_tuple(MakeDict(file), nb::cast(file.metadata()));
}

nb::bytes MakeTorchFile(const nb::dict& given) {
  const Tensors read = ReadTensors(given);
  auto value = io::TorchValue::Dict();
  for (const Tensor& tensor : read.tensors) value.Add(tensor.spec.name, io::TorchValue::Of(tensor));
  const std::string bytes = [&] {
    const nb::gil_scoped_release released;
    return io::TorchFileBytes(value);
  }();
  return nb::bytes(bytes.data(), bytes.size());
}

// --- files

/// A file that Python writes through its descriptor.
class PyAtomicFile {
 public:
  PyAtomicFile(Path path, bool is_private)
      : file_(std::make_unique<io::AtomicFile>(
            std::move(path), is_private ? io::Access::kUser : io::Access::kUmask)) {}

  int fileno() const { return file_ ? file_->fd() : -1; }
  void Commit(bool is_lasting) {
    if (!file_) return;
    if (is_lasting) {
      file_->Commit();
    } else {
      file_->CommitUnsynced();
    }
  }
  void Close() { file_.reset(); }

 private:
  std::unique_ptr<io::AtomicFile> file_;
};

// --- checkpoints

using Progress = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;

io::CheckpointContent ReadContent(const Progress& progress, const nb::dict& parts,
                                  const std::string& fields) {
  io::CheckpointContent content;
  content.progress = {std::get<0>(progress), std::get<1>(progress), std::get<2>(progress)};
  content.fields = fields;
  nb::list kept;
  for (const auto& [part, given] : parts) {
    Tensors read = ReadTensors(nb::cast<nb::dict>(given));
    content.parts.emplace(nb::cast<std::string>(part), std::move(read.tensors));
    kept.append(read.kept);
  }
  content.owner = std::make_shared<Kept>(std::move(kept));
  return content;
}

/// A store that several threads of Python may ask.
class PyStore {
 public:
  PyStore(Path folder, std::size_t keep_last)
      : store_(std::move(folder), {.keep_last = keep_last}) {}

  template <typename Call>
  auto Ask(Call&& call) {
    const nb::gil_scoped_release released;
    const std::lock_guard lock(mutex_);
    return call(store_);
  }

 private:
  std::mutex mutex_;
  io::CheckpointStore store_;  // used with mutex_ held
};

/// A writer whose thread needs the GIL for letting go of arrays: also while it is waited for.
class PyWriter {
 public:
  PyWriter(const Path& folder, std::size_t keep_last)
      : writer_(std::make_unique<io::AsyncWriter>(
            io::CheckpointStore(folder, {.keep_last = keep_last}))) {}
  PyWriter(const PyWriter&) = delete;
  PyWriter& operator=(const PyWriter&) = delete;
  ~PyWriter() {
    const nb::gil_scoped_release released;
    writer_.reset();
  }

  void Submit(const Progress& progress, const nb::dict& parts, const std::string& fields) {
    io::CheckpointContent content = ReadContent(progress, parts, fields);
    const nb::gil_scoped_release released;
    writer_->Submit(std::move(content));
  }
  void Flush(double timeout) {
    const nb::gil_scoped_release released;
    writer_->Flush(std::chrono::milliseconds(static_cast<std::int64_t>(timeout * 1000)));
  }
  std::uint64_t saved() const { return writer_->saved(); }
  std::uint64_t replaced() const { return writer_->replaced(); }

 private:
  std::unique_ptr<io::AsyncWriter> writer_;
};

void SaveCheckpoint(PyStore& self, const Progress& progress, const nb::dict& parts,
                    const std::string& fields) {
  const io::CheckpointContent content = ReadContent(progress, parts, fields);
  self.Ask([&](io::CheckpointStore& store) { store.Save(content); });
}

void BindCheckpoints(nb::module_& m) {
  nb::class_<io::Checkpoint>(m, "Checkpoint")
      .def_static(
          "open",
          [](const Path& folder) {
            const nb::gil_scoped_release released;
            return io::Checkpoint::Open(folder);
          },
          "folder"_a)
      .def_prop_ro("folder", &io::Checkpoint::folder)
      .def_prop_ro("progress",
                   [](const io::Checkpoint& self) {
                     const io::Progress& progress = self.progress();
                     return Progress(progress.iteration, progress.epoch, progress.cursor);
                   })
      .def_prop_ro("fields", &io::Checkpoint::fields)
      .def_prop_ro("parts", &io::Checkpoint::parts)
      .def(
          "tensors",
          [](const io::Checkpoint& self, const std::string& part) {
            return MakeDict(self.part(part));
          },
          "part"_a)
      .def(
          "check_matches",
          [](const io::Checkpoint& self, const std::string& part, const nb::dict& tensors) {
            std::vector<io::TensorSpec> expected;
            for (Tensor& tensor : ReadTensors(tensors).tensors)
              expected.push_back(std::move(tensor.spec));
            self.CheckMatches(part, expected);
          },
          "part"_a, "tensors"_a);
  nb::class_<PyStore>(m, "CheckpointStore")
      .def(nb::init<Path, std::size_t>(), "folder"_a, "keep_last"_a = 0)
      .def("save", &SaveCheckpoint, "progress"_a, "parts"_a, "fields"_a = "{}")
      .def("list",
           [](PyStore& self) {
             return self.Ask([](io::CheckpointStore& store) { return store.List(); });
           })
      .def("latest",
           [](PyStore& self) {
             return self.Ask([](io::CheckpointStore& store) { return store.Latest(); });
           })
      .def(
          "open",
          [](PyStore& self, std::uint64_t iteration) {
            return self.Ask([=](io::CheckpointStore& store) { return store.Open(iteration); });
          },
          "iteration"_a);
  nb::class_<PyWriter>(m, "AsyncWriter")
      .def(nb::init<Path, std::size_t>(), "folder"_a, "keep_last"_a = 0)
      .def("submit", &PyWriter::Submit, "progress"_a, "parts"_a, "fields"_a = "{}")
      .def("flush", &PyWriter::Flush, "timeout"_a)
      .def_prop_ro("saved", &PyWriter::saved)
      .def_prop_ro("replaced", &PyWriter::replaced);
}

// --- events and arrays

std::vector<std::tuple<std::int64_t, double, double>> ReadScalars(const Path& folder,
                                                                  const std::string& tag) {
  std::vector<std::tuple<std::int64_t, double, double>> found;
  for (const io::Scalar& scalar : io::ReadScalars(folder, tag))
    found.emplace_back(scalar.step, scalar.value, scalar.wall_time);
  return found;
}

template <auto Read>
nb::tuple LoadArray(const Path& path) {
  const auto file = [&] {
    const nb::gil_scoped_release released;
    return Read(path, io::RealFiles());
  }();
  return MakeTriple(file.tensor, Keep(file.owner));
}

template <auto Write>
void SaveArray(const Path& path, const nb::object& array) {
  nb::list kept;
  const Tensor tensor = ReadTensor(path.filename().string(), array, kept);
  const nb::gil_scoped_release released;
  Write(path, tensor, io::RealFiles());
}

}  // namespace

void BindIo(nb::module_& m) {
  m.def("save_safetensors", &SaveSafetensors, "path"_a, "tensors"_a, "metadata"_a = io::Metadata());
  m.def("load_safetensors", &LoadSafetensors, "path"_a);
  m.def("torch_file", &MakeTorchFile, "tensors"_a);
  using Released = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<PyAtomicFile>(m, "AtomicFile", "A file that is complete or not there.")
      .def(nb::init<Path, bool>(), "path"_a, "is_private"_a)
      .def("fileno", &PyAtomicFile::fileno)
      .def("commit", &PyAtomicFile::Commit, "is_lasting"_a, Released())
      .def("close", &PyAtomicFile::Close, Released());
  m.def(
      "check_zip_file", [](const Path& path) { io::CheckZipFile(path); },
      nb::call_guard<nb::gil_scoped_release>(), "path"_a);
  m.def("load_idx", &LoadArray<io::ReadIdx>, "path"_a);
  m.def("save_idx", &SaveArray<io::WriteIdx>, "path"_a, "array"_a);
  m.def("load_npy", &LoadArray<io::ReadNpy>, "path"_a);
  m.def("save_npy", &SaveArray<io::WriteNpy>, "path"_a, "array"_a);
  BindCheckpoints(m);
  nb::class_<io::EventWriter>(m, "EventWriter")
      .def(
          "__init__",
          [](io::EventWriter* self, const Path& folder) {
            const nb::gil_scoped_release released;
            new (self) io::EventWriter(folder);
          },
          "folder"_a)
      .def_prop_ro("path", &io::EventWriter::path)
      .def("add_scalar", &io::EventWriter::AddScalar, "tag"_a, "value"_a, "step"_a,
           "wall_time"_a = 0.0, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "add_hparams",
          [](io::EventWriter& self, decltype(io::HparamSession::hparams) hparams, bool has_failed,
             double began) {
            const nb::gil_scoped_release released;
            self.AddHparams(
                {.hparams = std::move(hparams), .has_failed = has_failed, .began = began});
          },
          "hparams"_a, "has_failed"_a = false, "began"_a = 0.0)
      .def("sync", &io::EventWriter::Sync, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "write_event_folders",
      [](const std::vector<std::tuple<Path, decltype(io::HparamSession::hparams),
                                      std::map<std::string, std::vector<double>>>>& folders) {
        for (const auto& [folder, hparams, curves] : folders) {
          io::EventWriter events(folder);
          events.AddCurves(curves);
          events.AddHparams({.hparams = hparams});
        }
      },
      "folders"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("read_scalars", &ReadScalars, "folder"_a, "tag"_a,
        nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace orca::bindings
