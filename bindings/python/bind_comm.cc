#include "bind_comm.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "orca/comm/communicator.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace orca::bindings {
namespace {

using comm::Bytes;
using comm::Collective;
using comm::Communicator;
using comm::ConstBytes;
using comm::DType;

// --- calls

/// What Python hands over for one collective. `reduces` asks for a type that the engine can reduce;
/// what is only moved may be of any type.
struct Call {
  Collective collective;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
};

DType TypeOf(const Call& call, bool reduces) {
  std::optional<nb::dlpack::dtype> type;
  if (!call.inputs.empty()) type = call.inputs[0].dtype();
  if (!call.outputs.empty()) type = call.outputs[0].dtype();
  if (!type) return DType::kUInt8;
  for (const Input& input : call.inputs) {
    if (input.dtype() != *type)
      throw Error(Code::kInvalidArgument, "arrays of one call differ in dtype");
  }
  for (const Output& output : call.outputs) {
    if (output.dtype() != *type)
      throw Error(Code::kInvalidArgument, "arrays of one call differ in dtype");
  }
  const auto known = EngineType(*type);
  if (!known && reduces) {
    throw Error(Code::kInvalidArgument,
                "arrays of this dtype cannot be reduced; use float64, float32, float16, bfloat16, "
                "int8, int16, int32, int64, uint8 or bool");
  }
  return known.value_or(DType::kUInt8);
}

Call MakeCall(int op, std::vector<Input> inputs, std::vector<Output> outputs, int reduce,
              double factor, int root) {
  Call call{{}, std::move(inputs), std::move(outputs)};
  Collective& collective = call.collective;
  collective.op = static_cast<comm::Op>(op);
  const bool reduces = reduce >= 0;
  if (reduces) collective.reduce = static_cast<comm::ReduceOp>(reduce);
  collective.dtype = TypeOf(call, reduces);
  collective.factor = factor;
  collective.root = root;
  std::vector<comm::ConstBytes> from;
  for (const Input& input : call.inputs) from.push_back(AsBytes(input));
  std::vector<comm::Bytes> to;
  for (const Output& output : call.outputs) to.push_back(AsBytes(output));
  collective.inputs = std::move(from);
  collective.outputs = std::move(to);
  return call;
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(std::llround(seconds * 1000.0));
}

// --- classes

/// A communicator and the arrays that its pending calls use.
class PyCommunicator {
 public:
  PyCommunicator(std::shared_ptr<Communicator> communicator, std::shared_ptr<comm::Store> store,
                 bool borrowed = false)
      : store_(std::move(store)), comm_(std::move(communicator)), borrowed_(borrowed) {}
  ~PyCommunicator() { Close(); }

  void Close() {
    std::shared_ptr<Communicator> last = std::move(comm_);
    const std::vector<Pending> pending = std::move(pending_);  // Goes when the calls have ended.
    comm_ = nullptr;
    pending_.clear();
    if (!last) return;
    const nb::gil_scoped_release released;
    if (!borrowed_ && last.use_count() > 1)
      last->Abort("it was closed while another thread was in a call");
    last.reset();
    for (const Pending& call : pending) {
      try {
        call.work.Wait();
      } catch (const Error&) {  // Whoever started it asks for its end, or does not care.
      }
    }
  }
  std::shared_ptr<Communicator> get() const {
    if (!comm_) throw Error(Code::kFailedPrecondition, "the communicator is closed; connect again");
    return comm_;
  }
  /// Keeps the arrays of a started call until it has ended.
  comm::Work Keep(comm::Work work, std::vector<Input> inputs, std::vector<Output> outputs) {
    std::erase_if(pending_, [](const Pending& pending) { return pending.work.Done(); });
    pending_.push_back({work, std::move(inputs), std::move(outputs)});
    return work;
  }

 private:
  struct Pending {
    comm::Work work;
    std::vector<Input> inputs;
    std::vector<Output> outputs;
  };
  std::shared_ptr<comm::Store> store_;  // Rank 0 may be serving it.
  std::shared_ptr<Communicator> comm_;  // Shared with calls that other threads are in.
  bool borrowed_;                       // The runtime keeps it for the next task.
  std::vector<Pending> pending_;
};

using OptionTexts = std::map<std::string, std::string>;

comm::CommOptions ReadOptions(const OptionTexts& texts) {
  comm::CommOptions options = comm::OptionsFromEnvironment();
  for (const auto& [name, text] : texts) comm::SetOption(options, name, text);
  return options;
}

std::unique_ptr<PyCommunicator> Connect(int rank, int world, std::shared_ptr<comm::Store> store,
                                        const std::string& group, std::uint64_t generation,
                                        const std::optional<std::string>& secret_file,
                                        const OptionTexts& options) {
  comm::Membership membership;
  membership.group = group;
  membership.generation = generation;
  membership.rank = rank;
  membership.world = world;
  membership.store = store;
  if (secret_file) membership.secret = net::Secret::FromFile(*secret_file);
  const comm::CommOptions settings = ReadOptions(options);
  std::unique_ptr<Communicator> communicator;
  {
    const nb::gil_scoped_release released;
    communicator = Communicator::Connect(membership, settings);
  }
  return std::make_unique<PyCommunicator>(std::move(communicator), std::move(store));
}

// Registered memory as an array of bytes; numpy gives it its type and shape.
nb::object Empty(const PyCommunicator& self, std::size_t bytes) {
  struct Owner {
    std::shared_ptr<comm::Arena> arena;
    void* memory;
  };
  auto owner = std::make_unique<Owner>(Owner{self.get()->arena(), nullptr});
  owner->memory = owner->arena->Allocate(std::max<std::size_t>(bytes, 1));
  void* memory = owner->memory;
  const nb::capsule capsule(owner.release(), [](void* pointer) noexcept {
    const std::unique_ptr<Owner> last(static_cast<Owner*>(pointer));
    last->arena->Free(last->memory);
  });
  return nb::ndarray<nb::numpy, std::uint8_t>(memory, {bytes}, capsule).cast();
}

void BindStore(nb::module_& m) {
  nb::class_<comm::Store>(m, "Store")
      .def_static("memory", &comm::NewMemoryStore)
      .def_static("file", &comm::NewFileStore, "directory"_a)
      .def_static(
          "serve",
          [](const std::string& address, const std::string& secret_file) {
            std::string bound;
            auto store = comm::ServeTcpStore(address, net::Secret::FromFile(secret_file), &bound);
            return nb::make_tuple(store, bound);
          },
          "address"_a, "secret_file"_a)
      .def_static(
          "connect",
          [](const std::string& address, const std::string& secret_file, double timeout) {
            const auto secret = net::Secret::FromFile(secret_file);
            const nb::gil_scoped_release released;
            return comm::ConnectTcpStore(address, secret, Milliseconds(timeout));
          },
          "address"_a, "secret_file"_a, "timeout"_a)
      .def("set", &comm::Store::Set, "key"_a, "value"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "get",
          [](comm::Store& self, const std::string& key, double timeout) {
            const nb::gil_scoped_release released;
            return self.Get(key, Milliseconds(timeout));
          },
          "key"_a, "timeout"_a);
}

void BindWork(nb::module_& m) {
  nb::class_<comm::Work>(m, "Work")
      .def("done", &comm::Work::Done)
      .def(
          "wait",
          [](const comm::Work& self, double timeout) {
            const nb::gil_scoped_release released;
            self.Wait(Milliseconds(timeout));
          },
          "timeout"_a = 0.0)
      .def("source", &comm::Work::source);
}

void BindCalls(nb::class_<PyCommunicator>& type) {
  type.def(
          "run",
          [](PyCommunicator& self, int op, std::vector<Input> inputs, std::vector<Output> outputs,
             int reduce, double factor, int root) {
            const Call call =
                MakeCall(op, std::move(inputs), std::move(outputs), reduce, factor, root);
            const auto comm = self.get();
            const nb::gil_scoped_release released;
            comm->Run(call.collective);
          },
          "op"_a, "inputs"_a, "outputs"_a, "reduce"_a = -1, "factor"_a = 1.0, "root"_a = 0)
      .def(
          "start",
          [](PyCommunicator& self, int op, std::vector<Input> inputs, std::vector<Output> outputs,
             int reduce, double factor, int root) {
            Call call = MakeCall(op, std::move(inputs), std::move(outputs), reduce, factor, root);
            const auto comm = self.get();
            std::optional<comm::Work> work;
            {
              const nb::gil_scoped_release released;  // It may run here, if all others wait.
              work = comm->Start(std::move(call.collective));
            }
            return self.Keep(std::move(*work), std::move(call.inputs), std::move(call.outputs));
          },
          "op"_a, "inputs"_a, "outputs"_a, "reduce"_a = -1, "factor"_a = 1.0, "root"_a = 0)
      .def(
          "send",
          [](PyCommunicator& self, const Input& array, int peer, std::uint64_t tag) {
            const ConstBytes bytes = AsBytes(array);
            const auto comm = self.get();
            const nb::gil_scoped_release released;
            comm->Send(bytes, peer, tag);
          },
          "array"_a, "peer"_a, "tag"_a = 0)
      .def(
          "recv",
          [](PyCommunicator& self, const Output& array, int peer, std::uint64_t tag) {
            const Bytes bytes = AsBytes(array);
            const auto comm = self.get();
            const nb::gil_scoped_release released;
            return comm->Recv(bytes, peer, tag);
          },
          "array"_a, "peer"_a, "tag"_a = 0)
      .def(
          "start_send",
          [](PyCommunicator& self, const Input& array, int peer, std::uint64_t tag) {
            return self.Keep(self.get()->StartSend(AsBytes(array), peer, tag), {array}, {});
          },
          "array"_a, "peer"_a, "tag"_a = 0)
      .def(
          "start_recv",
          [](PyCommunicator& self, const Output& array, int peer, std::uint64_t tag) {
            return self.Keep(self.get()->StartRecv(AsBytes(array), peer, tag), {}, {array});
          },
          "array"_a, "peer"_a, "tag"_a = 0);
}

}  // namespace

nb::object WrapCommunicator(std::shared_ptr<Communicator> communicator) {
  return nb::cast(std::make_unique<PyCommunicator>(std::move(communicator), nullptr, true));
}

std::shared_ptr<Communicator> UnwrapCommunicator(nb::handle wrapped) {
  return nb::cast<const PyCommunicator&>(wrapped).get();
}

void BindComm(nb::module_& m) {
  BindStore(m);
  BindWork(m);
  m.def(
      "check_options", [](const OptionTexts& texts) { ReadOptions(texts); }, "options"_a);
  nb::class_<PyCommunicator> type(m, "Communicator");
  type.def_static("connect", &Connect, "rank"_a, "world"_a, "store"_a.none(), "group"_a,
                  "generation"_a, "secret_file"_a.none(), "options"_a)
      .def("close", &PyCommunicator::Close)
      .def("empty", &Empty, "bytes"_a)
      .def("describe", [](const PyCommunicator& self) { return self.get()->Describe(); })
      .def_prop_ro("rank", [](const PyCommunicator& self) { return self.get()->rank(); })
      .def_prop_ro("world", [](const PyCommunicator& self) { return self.get()->world(); })
      .def_prop_ro("sequence", [](const PyCommunicator& self) { return self.get()->sequence(); })
      .def("abort", [](const PyCommunicator& self, const std::string& reason) {
        const auto comm = self.get();
        const nb::gil_scoped_release released;
        comm->Abort(reason);
      });
  BindCalls(type);
}

}  // namespace orca::bindings
