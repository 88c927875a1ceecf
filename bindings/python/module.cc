// The Python module orca._native._core.
#include <nanobind/nanobind.h>

#include <string_view>

#include "bind_comm.h"
#include "bind_data.h"
#include "bind_io.h"
#include "bind_learn.h"
#include "bind_learn_metrics.h"
#include "bind_learn_schedules.h"
#include "bind_learn_update.h"
#include "bind_runtime.h"
#include "bind_tune.h"
#include "orca/core/error.h"

namespace nb = nanobind;

namespace {

// Raises the class of orca.errors that has the name of the code.
void Raise(const orca::Error& error) {
  const nb::object classes = nb::module_::import_("orca.errors").attr("BY_CODE");
  const nb::object type = classes[nb::str(orca::CodeName(error.code()))];
  // Names out of a damaged file need not be UTF-8.
  const std::string_view what = error.what();
  const auto size = static_cast<Py_ssize_t>(what.size());
  const auto text = nb::steal(PyUnicode_DecodeUTF8(what.data(), size, "backslashreplace"));
  PyErr_SetObject(type.ptr(), text.ptr());
}

}  // namespace

NB_MODULE(_core, m) {
  m.attr("version") = ORCA_VERSION;
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void*) {
        try {
          std::rethrow_exception(thrown);
        } catch (const orca::Error& error) {
          Raise(error);
        }
      },
      nullptr);
  orca::bindings::BindComm(m);
  orca::bindings::BindData(m);
  orca::bindings::BindIo(m);
  orca::bindings::BindRuntime(m);
  orca::bindings::BindLearn(m);
  orca::bindings::BindMetrics(m);
  orca::bindings::BindSchedules(m);
  orca::bindings::BindUpdate(m);
  orca::bindings::BindTune(m);
}
