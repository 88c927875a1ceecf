#include "engine.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <atomic>
#include <stdexcept>

namespace orca::plugin {
namespace {

std::atomic<int> fork_epoch{0};

const OrcaApi& Load() {
  const OrcaApi* api = orca_plugin_api(ORCA_PLUGIN_API_VERSION);
  if (api == nullptr) {
    throw std::runtime_error("liborca.so does not speak version " +
                             std::to_string(ORCA_PLUGIN_API_VERSION) +
                             " of the plugin interface, which this torch plugin was built for; "
                             "build the plugin again (remove ~/.cache/orca) or reinstall orca-ml");
  }
  pthread_atfork(nullptr, nullptr, [] { fork_epoch.fetch_add(1, std::memory_order_relaxed); });
  return *api;
}

}  // namespace

const OrcaApi& Engine() {
  static const OrcaApi& api = Load();
  return api;
}

int ForkEpoch() { return fork_epoch.load(std::memory_order_relaxed); }

std::exception_ptr MakeError(const OrcaError& error, const std::string& call) {
  const std::string message = call + ": " + error.message;
  const c10::SourceLocation here{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)};
  if (error.code == static_cast<int>(Code::kInvalidArgument)) {
    return std::make_exception_ptr(c10::ValueError(here, message));
  }
  return std::make_exception_ptr(c10::DistBackendError(here, message));
}

void ThrowError(const OrcaError& error, const std::string& call) {
  std::rethrow_exception(MakeError(error, call));
}

void ThrowInvalid(const char* call, const std::string& message) {
  C10_THROW_ERROR(ValueError, std::string(call) + ": " + message);
}

}  // namespace orca::plugin
