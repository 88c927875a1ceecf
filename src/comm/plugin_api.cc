#include "orca/plugin_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "orca/comm/communicator.h"
#include "orca/core/error.h"
#include "orca/core/log.h"
#include "orca/core/plugin_guard.h"

struct OrcaComm {
  std::unique_ptr<orca::comm::Communicator> communicator;
  std::string description;
};

namespace {

using orca::Code;
using orca::Error;
using orca::Guard;
using orca::comm::Bytes;
using orca::comm::Collective;
using orca::comm::CommOptions;
using orca::comm::Communicator;
using orca::comm::ConstBytes;

/// The launcher's store behind the engine's interface.
class ForeignStore final : public orca::comm::Store {
 public:
  explicit ForeignStore(const OrcaStore& store) : store_(store) {}

  void Set(const std::string& key, const std::string& value) override {
    OrcaError error{};
    if (store_.set(store_.context, key.c_str(), value.data(), value.size(), &error) != 0)
      Throw(error, key);
  }

  std::string Get(const std::string& key, std::chrono::milliseconds timeout) override {
    OrcaError error{};
    std::string value;
    const auto receive = [](void* receiver, const void* data, std::size_t size) {
      static_cast<std::string*>(receiver)->assign(static_cast<const char*>(data), size);
    };
    if (store_.get(store_.context, key.c_str(), timeout.count(), receive, &value, &error) != 0)
      Throw(error, key);
    return value;
  }

 private:
  [[noreturn]] static void Throw(const OrcaError& error, const std::string& key) {
    const Code code = error.code == 0 ? Code::kUnavailable : static_cast<Code>(error.code);
    throw Error(code, fmt::format("the launcher's store failed for {}: {}", key, error.message));
  }

  OrcaStore store_;
};

const std::shared_ptr<orca::comm::Arena>& ProcessArena() {
  // Never destroyed: tensors may outlive everything else.
  static const auto* const arena =
      new std::shared_ptr<orca::comm::Arena>(orca::comm::Arena::Create());
  return *arena;
}

CommOptions ReadOptions(const OrcaGroup& group) {
  CommOptions options = orca::comm::OptionsFromEnvironment();
  if (group.timeout_ms > 0) options.timeout = std::chrono::milliseconds(group.timeout_ms);
  std::string rest = group.options == nullptr ? "" : group.options;
  while (!rest.empty()) {
    const auto end = rest.find('\n');
    const std::string line = rest.substr(0, end);
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
    if (line.empty()) continue;
    const auto equals = line.find('=');
    if (equals == std::string::npos) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("option '{}' is not of the form name=value", line));
    }
    SetOption(options, line.substr(0, equals), line.substr(equals + 1));
  }
  options.arena = ProcessArena();
  return options;
}

int Connect(const OrcaGroup* group, OrcaComm** comm, OrcaError* error) {
  return Guard(error, [&] {
    orca::comm::Membership membership;
    membership.group = group->name;
    membership.generation = group->generation;
    membership.rank = group->rank;
    membership.world = group->world;
    membership.store = std::make_shared<ForeignStore>(group->store);
    const char* secret_file = std::getenv("ORCA_SECRET_FILE");
    if (secret_file != nullptr) membership.secret = orca::net::Secret::FromFile(secret_file);
    auto made = std::make_unique<OrcaComm>();
    made->communicator = Communicator::Connect(membership, ReadOptions(*group));
    made->description = made->communicator->Describe();
    static std::atomic<bool> said{false};
    if (group->rank == 0 && group->world > 1 && !said.exchange(true)) {
      Log(orca::LogLevel::kInfo,
          fmt::format("{}{}", made->description,
                      secret_file != nullptr
                          ? ""
                          : "; the key came through the launcher's store (ORCA_SECRET_FILE brings "
                            "your own)"));
    }
    *comm = made.release();
  });
}

orca::comm::BufferList<ConstBytes> Inputs(const OrcaCall& call) {
  if (call.input_count == 1) {
    return ConstBytes(static_cast<const std::byte*>(call.inputs[0].data), call.inputs[0].bytes);
  }
  std::vector<ConstBytes> buffers;
  buffers.reserve(call.input_count);
  for (std::size_t i = 0; i < call.input_count; ++i) {
    buffers.emplace_back(static_cast<const std::byte*>(call.inputs[i].data), call.inputs[i].bytes);
  }
  return buffers;
}

orca::comm::BufferList<Bytes> Outputs(const OrcaCall& call) {
  if (call.output_count == 1) {
    return Bytes(static_cast<std::byte*>(call.outputs[0].data), call.outputs[0].bytes);
  }
  std::vector<Bytes> buffers;
  buffers.reserve(call.output_count);
  for (std::size_t i = 0; i < call.output_count; ++i) {
    buffers.emplace_back(static_cast<std::byte*>(call.outputs[i].data), call.outputs[i].bytes);
  }
  return buffers;
}

Collective ToCollective(const OrcaCall& call) {
  return {.op = static_cast<orca::comm::Op>(call.op),
          .dtype = static_cast<orca::comm::DType>(call.dtype),
          .reduce = static_cast<orca::comm::ReduceOp>(call.reduce),
          .factor = call.factor,
          .root = call.root,
          .inputs = Inputs(call),
          .outputs = Outputs(call),
          .timeout = std::chrono::milliseconds(call.timeout_ms)};
}

orca::comm::DoneCallback ToCallback(OrcaDone done, void* context) {
  return [done, context](const std::exception_ptr& failure, int source) {
    if (!failure) {
      done(context, nullptr, source);
      return;
    }
    OrcaError error{};
    Guard(&error, [&] { std::rethrow_exception(failure); });
    done(context, &error, source);
  };
}

int Run(OrcaComm* comm, const OrcaCall* call, OrcaError* error) {
  return Guard(error, [&] { comm->communicator->Run(ToCollective(*call)); });
}

int Start(OrcaComm* comm, const OrcaCall* call, OrcaDone done, void* context, OrcaError* error) {
  return Guard(error,
               [&] { comm->communicator->Start(ToCollective(*call), ToCallback(done, context)); });
}

ConstBytes AsConst(OrcaBuffer data) {
  return {static_cast<const std::byte*>(data.data), data.bytes};
}
Bytes AsMutable(OrcaBuffer data) { return {static_cast<std::byte*>(data.data), data.bytes}; }

int StartSend(OrcaComm* comm, OrcaBuffer data, int32_t peer, uint64_t tag, OrcaDone done,
              void* context, OrcaError* error) {
  return Guard(error, [&] {
    comm->communicator->StartSend(AsConst(data), peer, tag, ToCallback(done, context));
  });
}

int StartRecv(OrcaComm* comm, OrcaBuffer data, int32_t peer, uint64_t tag, OrcaDone done,
              void* context, OrcaError* error) {
  return Guard(error, [&] {
    comm->communicator->StartRecv(AsMutable(data), peer, tag, ToCallback(done, context));
  });
}

int Send(OrcaComm* comm, OrcaBuffer data, int32_t peer, uint64_t tag, OrcaError* error) {
  return Guard(error, [&] { comm->communicator->Send(AsConst(data), peer, tag); });
}

int Recv(OrcaComm* comm, OrcaBuffer data, int32_t peer, uint64_t tag, int32_t* source,
         OrcaError* error) {
  return Guard(error, [&] { *source = comm->communicator->Recv(AsMutable(data), peer, tag); });
}

void* Allocate(size_t bytes, OrcaError* error) {
  void* memory = nullptr;
  Guard(error, [&] { memory = ProcessArena()->Allocate(bytes); });
  return memory;
}

const OrcaApi kApi{
    .version = ORCA_PLUGIN_API_VERSION,
    .engine_version = ORCA_VERSION,
    .connect = Connect,
    .close = [](OrcaComm* comm) { delete comm; },
    .abort = [](OrcaComm* comm, const char* reason) { comm->communicator->Abort(reason); },
    .sequence = [](OrcaComm* comm) { return comm->communicator->sequence(); },
    .describe = [](OrcaComm* comm) { return comm->description.c_str(); },
    .run = Run,
    .start = Start,
    .start_send = StartSend,
    .start_recv = StartRecv,
    .send = Send,
    .recv = Recv,
    .allocate = Allocate,
    .release =
        [](void* memory) { Guard<OrcaError>(nullptr, [&] { ProcessArena()->Free(memory); }); },
};

}  // namespace

const OrcaApi* orca_plugin_api(uint32_t version) {
  return version == ORCA_PLUGIN_API_VERSION ? &kApi : nullptr;
}
