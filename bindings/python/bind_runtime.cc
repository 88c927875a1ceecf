#include "bind_runtime.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind_comm.h"
#include "orca/core/error.h"
#include "orca/runtime/context.h"
#include "orca/runtime/nursery.h"
#include "orca/runtime/parcel.h"
#include "orca/runtime/worker.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace orca::bindings {
namespace {

using runtime::Context;
using runtime::Parcel;
using runtime::Run;
using runtime::Worker;
using Holds = std::vector<std::shared_ptr<data::ShardHold>>;

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(std::llround(seconds * 1000.0));
}

// Texts of other processes may be cut in the middle of a character.
nb::object Text(const std::string& text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

/// The memory of Python objects that speak the buffer protocol.
class Buffers {
 public:
  explicit Buffers(const nb::sequence& objects) {
    for (const nb::handle object : objects) {
      Py_buffer& buffer = *buffers_.emplace_back(std::make_unique<Py_buffer>());
      if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_SIMPLE) != 0) {
        buffers_.pop_back();
        Release();
        throw nb::python_error();
      }
      parts_.emplace_back(static_cast<const std::byte*>(buffer.buf),
                          static_cast<std::size_t>(buffer.len));
    }
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() { Release(); }

  Parcel Pack() const {
    const nb::gil_scoped_release released;
    return Parcel::Pack(parts_);
  }

 private:
  void Release() {
    for (const auto& buffer : buffers_) PyBuffer_Release(buffer.get());
    buffers_.clear();
  }

  std::vector<std::unique_ptr<Py_buffer>> buffers_;
  std::vector<std::span<const std::byte>> parts_;
};

Parcel Pack(const nb::sequence& parts) { return Buffers(parts).Pack(); }

// Arrays of bytes that keep the parcel; of a short one copies, which are made faster. All can be
// written: so can the arrays that pickles make of them.
nb::list Unpack(const Parcel& parcel) {
  nb::list parts;
  for (const auto part : parcel.Parts()) {
    if (parcel.fd() < 0) {
      parts.append(nb::steal(PyByteArray_FromStringAndSize(
          reinterpret_cast<const char*>(part.data()), static_cast<Py_ssize_t>(part.size()))));
      continue;
    }
    auto owner = std::make_unique<Parcel>(parcel);
    const nb::capsule capsule(owner.release(), [](void* pointer) noexcept {
      const std::unique_ptr<Parcel> last(static_cast<Parcel*>(pointer));
    });
    parts.append(nb::ndarray<nb::numpy, std::uint8_t>(part.data(), {part.size()}, capsule).cast());
  }
  return parts;
}

nb::object DescribeFailure(const Run& run) {
  const auto& failure = run.failure();
  if (!failure) return nb::none();
  nb::list others;
  for (const std::string& other : failure->others) others.append(Text(other));
  nb::dict result;
  result["text"] = Text(failure->text);
  result["rank"] = failure->rank;
  result["type"] = Text(failure->type);
  result["traceback"] = Text(failure->traceback);
  result["others"] = others;
  result["cancelled"] = failure->cancelled;
  result["parts"] = Unpack(failure->parcel);
  return result;
}

void BindContext(nb::module_& m) {
  nb::class_<Run>(m, "Run")
      .def(
          "wait",
          [](Run& self, double timeout) {
            const nb::gil_scoped_release released;
            return self.Wait(Milliseconds(timeout));
          },
          "timeout"_a)
      .def("cancel", &Run::Cancel, "reason"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("results",
           [](const Run& self) {
             nb::list results;
             for (const Parcel& parcel : self.results()) results.append(Unpack(parcel));
             return results;
           })
      .def("failure", &DescribeFailure);
  nb::class_<Context>(m, "Context")
      .def_static(
          "start",
          [](int cores, std::size_t memory, double silence, int nodes, const std::string& address,
             const std::string& secret_file, double timeout) {
            runtime::ContextOptions options;
            options.cores = cores;
            options.memory = memory;
            options.silence = Milliseconds(silence);
            options.grace = options.silence * 2 / 5;
            options.prints = false;
            options.nodes = nodes;
            options.address = address;
            options.secret_file = secret_file;
            options.start_timeout = Milliseconds(timeout);
            const nb::gil_scoped_release released;
            return Context::Start(options);
          },
          "cores"_a, "memory"_a, "silence"_a, "nodes"_a, "address"_a, "secret_file"_a, "timeout"_a)
      .def_prop_ro("cores", &Context::cores)
      .def_prop_ro("memory", &Context::memory)
      .def_prop_ro("plan", &Context::plan)
      .def_prop_ro("stopped", &Context::stopped)
      .def_prop_ro("shards", &Context::shards)
      .def(
          "prepare",
          [](Context& self, const std::string& kind, const std::vector<std::string>& command,
             const std::map<std::string, std::string>& environment, const std::string& directory,
             const std::map<std::string, std::string>& versions) {
            self.Prepare({.kind = kind,
                          .command = command,
                          .environment = environment,
                          .directory = directory,
                          .versions = versions});
          },
          "kind"_a, "command"_a, "environment"_a, "directory"_a, "versions"_a)
      .def(
          "submit",
          [](Context& self, const std::string& kind, const nb::sequence& parts, const Holds& shards,
             int workers, int threads, const std::string& on_failure, int max_restarts,
             bool lets_go, bool oversubscribe) {
            runtime::RunSpec spec;
            spec.kind = kind;
            spec.workers = workers;
            spec.threads = threads;
            spec.on_failure = runtime::ParseOnFailure(on_failure);
            spec.max_restarts = max_restarts;
            spec.lets_go = lets_go;
            spec.oversubscribe = oversubscribe;
            spec.parcel = Pack(parts);
            spec.shards.assign(shards.begin(), shards.end());
            // Who is woken by it may take this core at once, and other threads go on meanwhile.
            const nb::gil_scoped_release released;
            return self.Submit(std::move(spec));
          },
          "kind"_a, "parts"_a, "shards"_a, "workers"_a, "threads"_a, "on_failure"_a,
          "max_restarts"_a, "lets_go"_a = false, "oversubscribe"_a = false)
      .def(
          "next_event",
          [](Context& self, double timeout) -> nb::object {
            std::optional<runtime::Event> event;
            {
              const nb::gil_scoped_release released;
              event = self.NextEvent(Milliseconds(timeout));
            }
            if (!event) return nb::none();
            return nb::make_tuple(static_cast<int>(event->kind), event->rank, event->level,
                                  event->stream, Text(event->logger), Text(event->text));
          },
          "timeout"_a)
      .def("open_door",
           [](Context& self) {
             const nb::gil_scoped_release released;
             const runtime::Door door = self.OpenDoor();
             return std::pair(door.name, door.secret_file);
           })
      .def("new_basket", &Context::NewBasket, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "empty_basket",
          [](Context& self, std::uint64_t basket, const std::vector<std::uint64_t>& shards) {
            Holds holds;
            const nb::gil_scoped_release released;
            for (const auto& hold : self.EmptyBasket(basket, shards))
              holds.push_back(std::const_pointer_cast<data::ShardHold>(hold));
            return holds;
          },
          "basket"_a, "shards"_a)
      .def(
          "next_question",
          [](Context& self, double timeout) { return self.NextQuestion(Milliseconds(timeout)); },
          "timeout"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "answer",
          [](Context& self, const runtime::Question& question, const nb::sequence& parts,
             const Holds& shards) {
            self.Answer(question,
                        {.parcel = Pack(parts), .shards = {shards.begin(), shards.end()}});
          },
          "question"_a, "parts"_a, "shards"_a)
      .def("stop", &Context::Stop, nb::call_guard<nb::gil_scoped_release>());
}

void BindGuest(nb::module_& m) {
  nb::class_<runtime::Question>(m, "Question").def("take_parts", [](runtime::Question& self) {
    return Unpack(std::exchange(self.parcel, {}));
  });
  nb::class_<runtime::Guest>(m, "Guest")
      .def_static(
          "join",
          [](const std::string& name, const std::string& secret_file, double timeout) {
            const nb::gil_scoped_release released;
            return runtime::Guest::Join({.name = name, .secret_file = secret_file},
                                        Milliseconds(timeout));
          },
          "name"_a, "secret_file"_a, "timeout"_a)
      .def_prop_ro("shards", &runtime::Guest::shards)
      .def(
          "leave",
          [](runtime::Guest& self, std::uint64_t basket, const std::vector<std::uint64_t>& shards) {
            self.Leave(basket, shards);
          },
          "basket"_a, "shards"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "ask",
          [](runtime::Guest& self, const nb::sequence& parts) {
            Parcel question = Pack(parts);
            runtime::Reply reply;
            {
              const nb::gil_scoped_release released;
              reply = self.Ask(std::move(question));
            }
            Holds shards;
            for (const auto& hold : reply.shards)
              shards.push_back(std::const_pointer_cast<data::ShardHold>(hold));
            return std::pair(Unpack(reply.parcel), shards);
          },
          "parts"_a);
}

void BindNursery(nb::module_& m) {
  nb::class_<runtime::Birth>(m, "Birth")
      .def_prop_ro("worker", [](const runtime::Birth& self) { return self.worker; })
      .def("settle", &runtime::Birth::Settle);
  m.def("stack_output", &runtime::StackOutput);
  nb::class_<runtime::Nursery>(m, "Nursery")
      .def("__init__",
           [](runtime::Nursery* self) {
             const auto fd = runtime::Nursery::InheritedFd();
             if (!fd)
               throw Error(Code::kFailedPrecondition,
                           "a nursery is started by an agent; use "
                           "orca.init_orca_context");
             new (self) runtime::Nursery(UniqueFd(*fd));
           })
      .def("ready", &runtime::Nursery::Ready, "threads"_a, "versions"_a)
      .def("next", &runtime::Nursery::Next, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "become_spare",
          [](runtime::Nursery& self, runtime::Birth& birth) { self.BecomeSpare(std::move(birth)); },
          "birth"_a)
      .def("forked", &runtime::Nursery::Forked, "worker"_a, "pid"_a)
      .def("cannot_fork", &runtime::Nursery::CannotFork, "worker"_a, "error"_a);
}

void BindWorker(nb::module_& m) {
  nb::class_<runtime::Task>(m, "Task")
      .def_ro("call", &runtime::Task::call)
      .def_ro("rank", &runtime::Task::rank)
      .def_ro("world", &runtime::Task::world)
      .def_ro("local_rank", &runtime::Task::local_rank)
      .def_ro("local_world", &runtime::Task::local_world)
      .def_ro("node", &runtime::Task::node)
      .def_ro("attempt", &runtime::Task::attempt)
      .def_ro("master", &runtime::Task::master)
      .def_ro("threads", &runtime::Task::threads)
      .def_ro("cpus", &runtime::Task::cpus)
      .def("take_parts",
           [](runtime::Task& self) { return Unpack(std::exchange(self.parcel, {})); });
  nb::class_<Worker>(m, "Worker")
      .def("__init__",
           [](Worker* self, runtime::Birth& birth) { new (self) Worker(std::move(birth.link)); })
      .def("next", &Worker::Next, nb::call_guard<nb::gil_scoped_release>())
      .def("done",
           [](Worker& self, const nb::sequence& parts, const Holds& shards) {
             self.Done(Pack(parts), {shards.begin(), shards.end()});
           })
      .def_prop_ro("shards", &Worker::shards)
      .def(
          "leave",
          [](Worker& self, std::uint64_t basket, const std::vector<std::uint64_t>& shards) {
            self.Leave(basket, shards);
          },
          "basket"_a, "shards"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("failed",
           [](Worker& self, std::string type, std::string text, std::string traceback, bool echo,
              bool lost_peer, const nb::sequence& parts) {
             self.Failed({.type = std::move(type),
                          .text = std::move(text),
                          .traceback = std::move(traceback),
                          .echo = echo,
                          .lost_peer = lost_peer,
                          .parcel = Pack(parts)});
           })
      .def("cancelled", &Worker::Cancelled)
      .def("interrupt_with",
           [](Worker& self, int signal) {
             self.OnCancel([thread = ::pthread_self(), signal] { ::pthread_kill(thread, signal); });
           })
      .def("communicator",
           [](Worker& self) {
             std::shared_ptr<comm::Communicator> group;
             {
               const nb::gil_scoped_release released;
               group = self.Communicator();
             }
             return WrapCommunicator(std::move(group));
           })
      .def("report", &Worker::Report, "step"_a, "metrics"_a)
      .def("log", &Worker::Log, "logger"_a, "level"_a, "text"_a);
}

}  // namespace

void BindRuntime(nb::module_& m) {
  BindContext(m);
  BindGuest(m);
  BindNursery(m);
  BindWorker(m);
}

}  // namespace orca::bindings
