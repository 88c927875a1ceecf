// The engine's function table as the plugin uses it, and what the plugin must know about forks and
// errors.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>

#include "orca/plugin_api.h"

namespace orca::plugin {

// The values of orca::Code, orca::comm::DType and orca::comm::Op that the plugin names; they are
// part of the interface.
enum class Code : int {
  kInvalidArgument = 1,
  kFailedPrecondition = 2,
  kTimeout = 4,
  kPeerLost = 5,
  kUnavailable = 9,
};
enum class DType : std::uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kBool
};
enum class Op : std::uint8_t {
  kBarrier,
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter
};

/// The engine. Throws std::runtime_error when liborca.so does not speak this plugin's version; the
/// first call is made while the module loads, so later ones do not throw.
const OrcaApi& Engine();

/// Counts the forks between the process that loaded the plugin and this one. Groups and registered
/// memory belong to the process, hence to the epoch, that made them: a forked child has the memory
/// but none of the engine's threads.
int ForkEpoch();

/// The one T of this process, made when first asked for. A forked child gets one of its own: its
/// parent's may be in use by threads that the child does not have. Never destroyed, so it may be
/// used until the very end.
template <typename T>
T& PerProcess() {
  struct Entry {
    int epoch = ForkEpoch();
    T value;
  };
  static std::atomic<Entry*> current{nullptr};
  Entry* entry = current.load();
  while (entry == nullptr || entry->epoch != ForkEpoch()) {
    auto* fresh = new Entry;
    if (current.compare_exchange_strong(entry, fresh)) return fresh->value;
    delete fresh;
  }
  return entry->value;
}

/// What torch users catch: ValueError for a bad argument, torch.distributed.DistBackendError for
/// all else. `call` names the operation for the message, e.g. "orca:all_reduce".
std::exception_ptr MakeError(const OrcaError& error, const std::string& call);
[[noreturn]] void ThrowError(const OrcaError& error, const std::string& call);
/// A bad argument that the plugin noticed itself.
[[noreturn]] void ThrowInvalid(const char* call, const std::string& message);

}  // namespace orca::plugin
