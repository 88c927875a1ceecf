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
ORCA_API comm::Communicator& Group();

/// How a function is run; see runtime::RunSpec.
struct RunOptions {
  int workers = 0;
  int threads = 0;
  OnFailure on_failure = OnFailure::kRaise;
  int max_restarts = 3;
};

/// What a call of orca::Run throws when the function failed somewhere.
class ORCA_API RunError : public Error {
 public:
  explicit RunError(runtime::RunFailure failure);
  const runtime::RunFailure& failure() const { return failure_; }

 private:
  runtime::RunFailure failure_;
};

namespace program {

using Parts = std::span<const std::span<std::byte>>;
/// Unpacks arguments, calls the function, packs what it returns.
using Thunk = std::vector<std::byte> (*)(void (*function)(), Parts arguments);

template <typename T>
inline constexpr bool kIsNumber = std::is_arithmetic_v<T>;

template <typename T>
struct Coder {
  static_assert(kIsNumber<T>, "arguments and results are numbers, strings, and vectors of numbers");
  static std::vector<std::byte> Pack(const T& value) {
    std::vector<std::byte> bytes(sizeof value);
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }
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
  static std::vector<std::byte> Pack(std::string_view value) {
    const auto bytes = std::as_bytes(std::span(value.data(), value.size()));
    return {bytes.begin(), bytes.end()};
  }
  static std::string Unpack(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

template <typename T>
struct Coder<std::vector<T>> {
  static_assert(kIsNumber<T> || std::is_same_v<T, std::byte>);
  static std::vector<std::byte> Pack(const std::vector<T>& value) {
    const auto bytes = std::as_bytes(std::span(value));
    return {bytes.begin(), bytes.end()};
  }
  static std::vector<T> Unpack(std::span<const std::byte> bytes) {
    std::vector<T> value(bytes.size() / sizeof(T));
    std::memcpy(value.data(), bytes.data(), value.size() * sizeof(T));
    return value;
  }
};

/// A view: the worker reads the one copy that its machine has.
template <typename T>
struct Coder<std::span<const T>> {
  static std::vector<std::byte> Pack(std::span<const T> value) {
    const auto bytes = std::as_bytes(value);
    return {bytes.begin(), bytes.end()};
  }
  static std::span<const T> Unpack(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

template <typename R, typename... A, std::size_t... I>
std::vector<std::byte> Call(R (*function)(A...), Parts arguments, std::index_sequence<I...>) {
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
std::vector<std::byte> CallPacked(void (*function)(), Parts arguments) {
  return Call(reinterpret_cast<R (*)(A...)>(function), arguments, std::index_sequence_for<A...>());
}

/// Submits a call; `function` and `thunk` are sent as module and offset.
ORCA_API std::shared_ptr<runtime::Run> Submit(Context& context, const RunOptions& options,
                                              void (*function)(), Thunk thunk,
                                              std::vector<std::vector<std::byte>> arguments);
/// Waits for a call; throws RunError when it failed. Bytes that each rank returned.
ORCA_API std::vector<std::vector<std::byte>> Collect(runtime::Run& run);

}  // namespace program

/// Runs `function(arguments...)` on every worker and returns their results by rank. It is a plain
/// function: of this program, or of a library that the program links. Numbers, strings, vectors of
/// numbers and (as arguments) std::span<const T> can travel.
template <typename R, typename... A, typename... Given>
auto Run(Context& context, const RunOptions& options, R (*function)(A...), Given&&... arguments) {
  static_assert(sizeof...(A) == sizeof...(Given), "give as many arguments as the function takes");
  std::vector<std::vector<std::byte>> packed{
      program::Coder<std::remove_cvref_t<A>>::Pack(std::forward<Given>(arguments))...};
  const auto run = program::Submit(context, options, reinterpret_cast<void (*)()>(function),
                                   &program::CallPacked<R, A...>, std::move(packed));
  const auto results = program::Collect(*run);
  if constexpr (!std::is_void_v<R>) {
    std::vector<std::remove_cvref_t<R>> values;
    for (const auto& bytes : results)
      values.push_back(program::Coder<std::remove_cvref_t<R>>::Unpack(bytes));
    return values;
  }
}

}  // namespace orca
