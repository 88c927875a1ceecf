// C++ functions on workers.
//
//   double Square(double x) { return x * x; }
//
//   int main(int argc, char** argv) {
//     orca::Init(argc, argv);
//     const auto context = orca::Context::Start({});
//     for (double y : orca::Run(*context, {.workers = 2}, Square, 3.0)) ...
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "orca/comm/communicator.h"
#include "orca/core/error.h"
#include "orca/core/export.h"
#include "orca/data/shard.h"
#include "orca/runtime/context.h"
#include "orca/runtime/parcel.h"

namespace orca {

using runtime::Context;
using runtime::ContextOptions;
using runtime::OnFailure;

/// The first statement of main, in a program that runs functions on workers. In a worker it does
/// not return.
ORCA_API void Init(int argc, char** argv);

/// Where a function runs: its number, how many run it, and the group that connects them. Outside of
/// Run a program is a group of one.
ORCA_API int Rank();
ORCA_API int WorldSize();
ORCA_API int LocalRank();
ORCA_API int LocalWorldSize();
/// How many threads a function's own computations should use.
ORCA_API int Threads();
/// How often the call was begun anew because a worker had died.
ORCA_API int Attempt();
ORCA_API comm::Communicator& Group();

/// How far a function is, and what it measured, for the run's log ("orca logs"); outside of Run it
/// says nothing. At most ten a second are kept, and the last one in any case.
ORCA_API void Report(std::uint64_t step, const std::map<std::string, double>& metrics = {});

/// Leaves shards that this worker holds in a basket of the driver's (see Context::NewBasket), in
/// the place of what is in it: they outlive this worker. Outside of Run it does nothing.
ORCA_API void Leave(std::uint64_t basket, std::span<const std::uint64_t> shards);

/// How a function is run; see runtime::RunSpec.
struct RunOptions {
  int workers = 0;
  int threads = 0;
  OnFailure on_failure = OnFailure::kRaise;
  int max_restarts = 3;
  bool oversubscribe = false;
};

/// What a call of orca::Run throws when the function failed somewhere.
class ORCA_API RunError : public Error {
 public:
  explicit RunError(runtime::RunFailure failure);
  const runtime::RunFailure& failure() const { return failure_; }

 private:
  runtime::RunFailure failure_;
};

/// Where functions put shards and find them: the node's in a worker, this process's elsewhere (a
/// driver's are those of its Context).
ORCA_API const std::shared_ptr<data::ShardHome>& Shards();

namespace program {

using Parts = std::span<const std::span<std::byte>>;

/// A value on its way. Memory of the caller's is not copied.
struct Packed {
  std::vector<std::byte> own = {};
  std::span<const std::byte> borrowed = {};
  std::vector<std::shared_ptr<const data::ShardHold>> shards = {};  ///< That it names.

  std::span<const std::byte> bytes() const { return own.empty() ? borrowed : own; }
};

/// Unpacks arguments, calls the function, packs what it returns.
using Thunk = Packed (*)(void (*function)(), Parts arguments);

template <typename T>
inline constexpr bool kIsNumber = std::is_arithmetic_v<T>;

template <typename T>
std::vector<std::byte> CopyOf(std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

template <typename T>
struct Coder {
  static_assert(kIsNumber<T>,
                "arguments and results are numbers, strings, vectors of numbers, shards, and (as "
                "arguments) plain functions");
  static Packed Pack(const T& value) { return {.own = CopyOf(std::span(&value, 1))}; }
  static T Unpack(std::span<const std::byte> bytes) {
    T value{};
    if (bytes.size() != sizeof value)
      throw Error(Code::kInvalidArgument, "an argument arrived with a wrong size");
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
};

template <>
struct Coder<std::string> {
  static Packed Pack(std::string_view value) {
    return {.own = CopyOf(std::span(value.data(), value.size()))};
  }
  static std::string Unpack(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

template <typename T>
struct Coder<std::vector<T>> {
  static_assert(kIsNumber<T> || std::is_same_v<T, std::byte>);
  static Packed Pack(const std::vector<T>& value) { return {.own = CopyOf(std::span(value))}; }
  static std::vector<T> Unpack(std::span<const std::byte> bytes) {
    std::vector<T> value(bytes.size() / sizeof(T));
    if (!value.empty()) std::memcpy(value.data(), bytes.data(), value.size() * sizeof(T));
    return value;
  }
};

/// A view: the worker reads the one copy that its machine has.
template <typename T>
struct Coder<std::span<const T>> {
  static Packed Pack(std::span<const T> value) { return {.borrowed = std::as_bytes(value)}; }
  static std::span<const T> Unpack(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

/// Only the number of a shard travels: the other side opens the same memory.
template <>
struct Coder<std::shared_ptr<const data::Shard>> {
  static Packed Pack(const std::shared_ptr<const data::Shard>& shard) {
    if (!shard) throw Error(Code::kInvalidArgument, "a shard is null; put something into it");
    Packed packed = Coder<std::uint64_t>::Pack(shard->hold()->id());
    packed.shards.push_back(shard->hold());
    return packed;
  }
  /// `home` is where a shard with that number is found.
  static std::shared_ptr<const data::Shard> Unpack(
      std::span<const std::byte> bytes, const std::shared_ptr<data::ShardHome>& home = Shards()) {
    return data::Shard::Open(data::ShardHold::Take(home, Coder<std::uint64_t>::Unpack(bytes)));
  }
};

template <>
struct Coder<std::vector<std::shared_ptr<const data::Shard>>> {
  static Packed Pack(const std::vector<std::shared_ptr<const data::Shard>>& shards) {
    std::vector<std::uint64_t> ids;
    Packed packed;
    for (const auto& shard : shards) {
      if (!shard) throw Error(Code::kInvalidArgument, "a shard is null; put something into it");
      ids.push_back(shard->hold()->id());
      packed.shards.push_back(shard->hold());
    }
    packed.own = CopyOf(std::span<const std::uint64_t>(ids));
    return packed;
  }
  static std::vector<std::shared_ptr<const data::Shard>> Unpack(
      std::span<const std::byte> bytes, const std::shared_ptr<data::ShardHome>& home = Shards()) {
    std::vector<std::shared_ptr<const data::Shard>> shards;
    for (const std::uint64_t id : Coder<std::vector<std::uint64_t>>::Unpack(bytes))
      shards.push_back(data::Shard::Open(data::ShardHold::Take(home, id)));
    return shards;
  }
};

template <typename T>
inline constexpr bool kIsShards =
    std::is_same_v<T, std::shared_ptr<const data::Shard>> ||
    std::is_same_v<T, std::vector<std::shared_ptr<const data::Shard>>>;

/// A plain function as it travels: module and offset.
ORCA_API std::vector<std::byte> PackFunction(void (*function)());
ORCA_API void (*UnpackFunction(std::span<const std::byte> bytes))();

/// Null is sent as null.
template <typename R, typename... A>
struct Coder<R (*)(A...)> {
  static Packed Pack(R (*function)(A...)) {
    if (function == nullptr) return {};
    return {.own = PackFunction(reinterpret_cast<void (*)()>(function))};
  }
  static auto Unpack(std::span<const std::byte> bytes) -> R (*)(A...) {
    if (bytes.empty()) return nullptr;
    return reinterpret_cast<R (*)(A...)>(UnpackFunction(bytes));
  }
};

template <typename R, typename... A, std::size_t... I>
Packed Call(R (*function)(A...), Parts arguments, std::index_sequence<I...>) {
  if (arguments.size() != sizeof...(A))
    throw Error(Code::kInvalidArgument, "a function got a wrong number of arguments");
  if constexpr (std::is_void_v<R>) {
    function(Coder<std::remove_cvref_t<A>>::Unpack(arguments[I])...);
    return {};
  } else {
    return Coder<std::remove_cvref_t<R>>::Pack(
        function(Coder<std::remove_cvref_t<A>>::Unpack(arguments[I])...));
  }
}

template <typename R, typename... A>
Packed CallPacked(void (*function)(), Parts arguments) {
  return Call(reinterpret_cast<R (*)(A...)>(function), arguments, std::index_sequence_for<A...>());
}

/// Submits a call; `function` and `thunk` are sent as module and offset.
ORCA_API std::shared_ptr<runtime::Run> Submit(Context& context, const RunOptions& options,
                                              void (*function)(), Thunk thunk,
                                              std::span<const Packed> arguments);
/// Waits for a call; throws RunError when it failed. Bytes that each rank returned.
ORCA_API std::vector<std::vector<std::byte>> Collect(runtime::Run& run);

}  // namespace program

/// Runs `function(arguments...)` on every worker and returns their results by rank. It is a plain
/// function: of this program, or of a library that the program links. Numbers, strings, vectors of
/// numbers, shards, vectors of shards and (as arguments) std::span<const T> and plain functions can
/// travel.
template <typename R, typename... A, typename... Given>
auto Run(Context& context, const RunOptions& options, R (*function)(A...), Given&&... arguments) {
  static_assert(sizeof...(A) == sizeof...(Given), "give as many arguments as the function takes");
  std::vector<program::Packed> packed;
  (packed.push_back(program::Coder<std::remove_cvref_t<A>>::Pack(std::forward<Given>(arguments))),
   ...);
  const auto run = program::Submit(context, options, reinterpret_cast<void (*)()>(function),
                                   &program::CallPacked<R, A...>, packed);
  const auto results = program::Collect(*run);
  if constexpr (!std::is_void_v<R>) {
    std::vector<std::remove_cvref_t<R>> values;
    using Result = std::remove_cvref_t<R>;
    for (const auto& bytes : results) {
      if constexpr (program::kIsShards<Result>) {
        values.push_back(program::Coder<Result>::Unpack(bytes, context.shards()));
      } else {
        values.push_back(program::Coder<Result>::Unpack(bytes));
      }
    }
    return values;
  }
}

}  // namespace orca
