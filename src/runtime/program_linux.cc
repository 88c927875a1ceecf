#include <cxxabi.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <typeinfo>

#include "orca/core/host.h"
#include "orca/runtime/nursery.h"
#include "orca/runtime/program.h"
#include "orca/runtime/worker.h"
#include "runtime/link.h"
#include "runtime/symbol.h"

namespace orca {
namespace {

using runtime::Json;
using runtime::Parcel;
using runtime::Symbol;
using runtime::Task;
using runtime::Worker;

constexpr const char* kNativeKind = "native";

// What this process runs now, if it is a worker.
Worker* the_worker = nullptr;
std::optional<Task> the_task;

Symbol ReadSymbol(const Json& words) {
  return {.module = words.at(0).get<std::string>(),
          .build = words.at(1).get<std::string>(),
          .offset = words.at(2).get<std::uint64_t>()};
}

Json WriteSymbol(const Symbol& symbol) {
  return Json::array({symbol.module, symbol.build, symbol.offset});
}

Json ReadJson(std::span<const std::byte> bytes) {
  const auto* text = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return Json::from_msgpack(text, text + bytes.size());
}

void Pin(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<std::size_t>(cpu), &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

program::Packed Execute(const Parcel& parcel) {
  const auto parts = parcel.Parts();
  if (parts.empty()) throw Error(Code::kInternal, "a task came without a function");
  const Json head = ReadJson(parts[0]);
  const auto function = runtime::Resolve(ReadSymbol(head.at("function")));
  const auto thunk =
      reinterpret_cast<program::Thunk>(runtime::Resolve(ReadSymbol(head.at("thunk"))));
  return thunk(function, std::span(parts).subspan(1));
}

std::string TypeName(const std::exception& error) {
  int status = 0;
  const char* const name = typeid(error).name();
  const std::unique_ptr<char, void (*)(void*)> plain(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? plain.get() : name;
}

void RunTask(Worker& worker) {
  try {
    Pin(the_task->cpus);
    const program::Packed result = Execute(the_task->parcel);
    const std::span<const std::byte> part = result.bytes();
    worker.Done(Parcel::Pack(std::span(&part, 1)), result.shards);
  } catch (const Error& error) {
    worker.Failed({.type = TypeName(error),
                   .text = error.what(),
                   .echo = runtime::IsEcho(error.code()),
                   .lost_peer = error.code() == Code::kPeerLost});
  } catch (const std::exception& error) {
    worker.Failed({.type = TypeName(error), .text = error.what()});
  }
}

[[noreturn]] void Live(runtime::Birth birth) {
  birth.Settle();
  {
    Worker worker(std::move(birth.link));
    the_worker = &worker;
    while ((the_task = worker.Next())) {
      RunTask(worker);
      the_task.reset();
    }
  }
  std::fflush(nullptr);
  ::_exit(0);
}

[[noreturn]] void Raise(int agent) {
  ::unsetenv("ORCA_NURSERY");
  ::setvbuf(stdout, nullptr, _IOLBF, 0);
  {
    runtime::Nursery nursery{UniqueFd(agent)};
    nursery.Ready(1);
    while (auto birth = nursery.Next()) {
      const pid_t pid = ::fork();
      if (pid == 0 && birth->worker != 0) Live(std::move(*birth));
      if (pid == 0) {
        nursery.BecomeSpare(std::move(*birth));
        nursery.Ready(1);
      } else if (pid > 0) {
        nursery.Forked(birth->worker, pid);
      } else {
        nursery.CannotFork(birth->worker, errno);
      }
    }
  }
  ::_exit(0);
}

comm::Communicator& Alone() {
  static const auto alone = comm::Communicator::Connect({});
  return *alone;
}

}  // namespace

void Init(int /*argc*/, char** /*argv*/) {
  if (const auto agent = runtime::Nursery::InheritedFd()) Raise(*agent);
}

int Rank() { return the_task ? the_task->rank : 0; }
int WorldSize() { return the_task ? the_task->world : 1; }
int LocalRank() { return the_task ? the_task->local_rank : 0; }
int LocalWorldSize() { return the_task ? the_task->local_world : 1; }
int Attempt() { return the_task ? the_task->attempt : 0; }
int Threads() {
  if (the_task) return the_task->threads;
  return std::min(static_cast<int>(AllowedCpus().count()), CgroupCpuLimit());
}
const std::shared_ptr<data::ShardHome>& Shards() {
  static const std::shared_ptr<data::ShardHome> own = data::ShardShelf::Create();
  return the_worker != nullptr ? the_worker->shards() : own;
}
comm::Communicator& Group() { return the_task ? *the_worker->Communicator() : Alone(); }

void Report(std::uint64_t step, const std::map<std::string, double>& metrics) {
  if (the_task) the_worker->Report(step, metrics);
}

void Leave(std::uint64_t basket, std::span<const std::uint64_t> shards) {
  if (the_task) the_worker->Leave(basket, shards);
}

RunError::RunError(runtime::RunFailure failure)
    : Error(failure.cancelled ? Code::kAborted : Code::kPeerLost, failure.text),
      failure_(std::move(failure)) {}

namespace program {

std::vector<std::byte> PackFunction(void (*function)()) {
  std::vector<std::uint8_t> words;
  Json::to_msgpack(WriteSymbol(runtime::SymbolOf(function)), words);
  return CopyOf(std::span<const std::uint8_t>(words));
}

void (*UnpackFunction(std::span<const std::byte> bytes))() {
  return runtime::Resolve(ReadSymbol(ReadJson(bytes)));
}

std::shared_ptr<runtime::Run> Submit(Context& context, const RunOptions& options,
                                     void (*function)(), Thunk thunk,
                                     std::span<const Packed> arguments) {
  Json head = {{"function", WriteSymbol(runtime::SymbolOf(function))},
               {"thunk", WriteSymbol(runtime::SymbolOf(reinterpret_cast<void (*)()>(thunk)))}};
  std::vector<std::uint8_t> words;
  Json::to_msgpack(head, words);
  std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(words))};
  std::vector<std::shared_ptr<const data::ShardHold>> shards;
  for (const Packed& argument : arguments) {
    parts.push_back(argument.bytes());
    for (const auto& shard : argument.shards) {
      if (shard->home() != context.shards())
        throw Error(Code::kInvalidArgument,
                    "a shard is not in the context's memory; put it into context.shards()");
      shards.push_back(shard);
    }
  }
  context.Prepare({.kind = kNativeKind,
                   .command = {std::filesystem::canonical("/proc/self/exe").string()},
                   .directory = std::filesystem::current_path().string()});
  return context.Submit({.kind = kNativeKind,
                         .workers = options.workers,
                         .threads = options.threads,
                         .on_failure = options.on_failure,
                         .max_restarts = options.max_restarts,
                         .oversubscribe = options.oversubscribe,
                         .parcel = Parcel::Pack(parts),
                         .shards = std::move(shards)});
}

std::vector<std::vector<std::byte>> Collect(runtime::Run& run) {
  while (!run.Wait(std::chrono::seconds(1))) {
  }
  if (run.failure()) throw RunError(*run.failure());
  std::vector<std::vector<std::byte>> results;
  for (const Parcel& parcel : run.results()) {
    const auto parts = parcel.Parts();
    results.emplace_back(parts.at(0).begin(), parts.at(0).end());
  }
  return results;
}

}  // namespace program
}  // namespace orca
