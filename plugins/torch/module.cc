// The Python module _orca_c10d.
#include <pybind11/chrono.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "backend.h"
#include "engine.h"
#include "kernels.h"
#include "memory.h"

namespace {

using orca::plugin::OrcaBackend;
using orca::plugin::OrcaOptions;

at::ScalarType ScalarTypeOf(const py::object& dtype) {
  if (!THPDtype_Check(dtype.ptr())) throw py::type_error("dtype must be a torch.dtype");
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

}  // namespace

PYBIND11_MODULE(_orca_c10d, m) {
  try {
    orca::plugin::Engine();
  } catch (const std::exception& e) {
    throw py::import_error(e.what());
  }
  py::module_::import("torch._C._distributed_c10d");  // Registers the base classes.
  m.attr("engine_version") = orca::plugin::Engine().engine_version;
  m.attr("api_version") = ORCA_PLUGIN_API_VERSION;

  py::class_<OrcaOptions, c10::intrusive_ptr<OrcaOptions>, c10d::Backend::Options>(m, "OrcaOptions")
      .def(py::init([](std::chrono::milliseconds timeout, std::string settings) {
             return c10::make_intrusive<OrcaOptions>(timeout, std::move(settings));
           }),
           py::arg("timeout") = kBackendDefaultTimeout, py::arg("settings") = "")
      .def_readwrite("settings", &OrcaOptions::settings)
      .def("__deepcopy__", [](const OrcaOptions& self, const py::dict&) {
        return c10::make_intrusive<OrcaOptions>(self);
      });

  py::class_<OrcaBackend, c10::intrusive_ptr<OrcaBackend>, c10d::Backend>(m, "OrcaBackend")
      .def(py::init([](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                       c10::intrusive_ptr<OrcaOptions> options) {
             return c10::make_intrusive<OrcaBackend>(store, rank, size, std::move(options));
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"),
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("options", &OrcaBackend::getBackendOptions)
      .def("get_error", &OrcaBackend::getError)
      .def("_set_default_timeout", &OrcaBackend::setTimeout, py::arg("timeout"))
      .def("describe", &OrcaBackend::Describe);

  m.def("use_kernels", &orca::plugin::UseKernels, py::arg("use"));
  m.def("close_all", &OrcaBackend::CloseAll);
  m.def("empty",
        torch::wrap_pybind_function(  // A warning becomes Python's.
            [](const std::vector<std::int64_t>& size, const py::object& dtype) {
              return orca::plugin::EmptyRegistered(size, ScalarTypeOf(dtype));
            }),
        py::arg("size"), py::arg("dtype"));
  m.def("is_registered", &orca::plugin::IsRegistered, py::arg("tensor"));
  m.def("memory_stats", [] {
    const auto stats = orca::plugin::GetMemoryStats();
    py::dict result;
    result["tensors"] = stats.tensors;
    result["bytes"] = stats.bytes;
    result["live"] = stats.live;
    return result;
  });
}
