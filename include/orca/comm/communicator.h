// Collectives over shared memory and TCP.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "orca/comm/arena.h"
#include "orca/comm/store.h"
#include "orca/comm/types.h"
#include "orca/core/error.h"
#include "orca/core/export.h"
#include "orca/net/secret.h"

namespace orca::comm {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

/// Who belongs to a group, and where its ranks meet.
struct Membership {
  std::string group = "orca";    ///< Names the group; two groups on one store need two names.
  std::uint64_t generation = 0;  ///< A group that forms again after a failure takes a higher one.
  int rank = 0;
  int world = 1;
  std::shared_ptr<Store>
      store;  ///< Where ranks publish their addresses. Not needed when world is 1.
  std::optional<net::Secret>
      secret;  ///< Without one, rank 0 makes a key and puts it into the store.
};

/// Settings that must be the same on every rank of a group.
struct CommOptions {
  using Milliseconds = std::chrono::milliseconds;
  Milliseconds timeout =
      std::chrono::minutes(30);  ///< For one collective, unless its call says otherwise.
  Milliseconds connect_timeout = std::chrono::minutes(1);  ///< For all ranks to join.
  Milliseconds peer_timeout =
      std::chrono::seconds(5);  ///< A peer that is silent for so long is lost.
  Milliseconds warn_after = std::chrono::seconds(5);  ///< A wait this long is reported.
  /// Told of a wait in a collective that has lasted for warn_after, and after every six times that;
  /// says who waits for whom. Empty: the log.
  std::function<void(const std::string& text, Milliseconds waited)> on_long_wait;
  /// "auto": shared memory between ranks of one host, TCP between hosts. "tcp": TCP between all
  /// ranks.
  std::string transport = "auto";
  std::string
      host;  ///< Ranks with the same value share memory; empty: found out (boot id and namespaces).
  std::string address;     ///< The address that other hosts reach this one by; empty: found out.
  int streams = 0;         ///< TCP connections a pair of ranks; 0: chosen by the engine.
  bool wire_bf16 = false;  ///< float32 sums cross hosts as bfloat16.
  /// Asked now and then while the group forms: true ends that with kAborted, for ranks that will
  /// never come.
  std::function<bool()> cancelled;
  std::shared_ptr<Arena>
      arena;  ///< Registered memory, shared by several groups; empty: the group makes its own.
};

/// The defaults, changed by the environment: ORCA_TRANSPORT, ORCA_PEER_TIMEOUT (seconds), and so
/// on; see SetOption.
ORCA_API CommOptions OptionsFromEnvironment();
/// Sets one option from text ("transport", "tcp"; times in seconds). An unknown name or a bad value
/// throws kInvalidArgument and says what there is.
ORCA_API void SetOption(CommOptions& options, const std::string& name, const std::string& value);

/// The buffers of a call, mostly one: that one needs no memory of its own.
template <typename Buffer>
class BufferList {
 public:
  BufferList() = default;
  // One buffer, a vector and a list in braces are all ways to write the same thing.
  // NOLINTBEGIN(google-explicit-constructor)
  BufferList(Buffer only) : only_(only), size_(1) {}
  BufferList(std::vector<Buffer> several) : several_(std::move(several)), size_(several_.size()) {
    if (size_ == 1) only_ = several_[0];
  }
  BufferList(std::initializer_list<Buffer> buffers)
      : BufferList(buffers.size() == 1 ? BufferList(*buffers.begin())
                                       : BufferList(std::vector<Buffer>(buffers))) {}
  operator std::vector<Buffer>() const { return {begin(), end()}; }
  // NOLINTEND(google-explicit-constructor)

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const Buffer* data() const { return size_ == 1 ? &only_ : several_.data(); }
  const Buffer* begin() const { return data(); }
  const Buffer* end() const { return data() + size_; }
  const Buffer& operator[](std::size_t i) const { return data()[i]; }

 private:
  Buffer only_;
  std::vector<Buffer> several_;
  std::size_t size_ = 0;
};

/// One call of a collective: what to do with which memory. Buffers are borrowed until the call is
/// done.
///
/// `inputs` and `outputs` hold one buffer, or one a rank (the unequal forms). The static functions
/// below say what each operation wants and are the usual way to make one.
struct Collective {
  Op op = Op::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp reduce = ReduceOp::kSum;
  double factor = 1.0;  ///< For kPreMulSum.
  int root = 0;
  BufferList<ConstBytes> inputs;
  BufferList<Bytes> outputs;
  std::chrono::milliseconds timeout{0};  ///< 0: the group's.

  ORCA_API static Collective Barrier();
  /// Reduces `data` over all ranks, in place. Its size must be the same on every rank.
  ORCA_API static Collective AllReduce(Bytes data, DType dtype, ReduceOp reduce = ReduceOp::kSum,
                                       double factor = 1.0);
  /// As above, from `input` into `output`.
  ORCA_API static Collective AllReduce(ConstBytes input, Bytes output, DType dtype,
                                       ReduceOp reduce = ReduceOp::kSum, double factor = 1.0);
  /// Reduces `data` of all ranks into `data` of `root`; the others' stays as it was.
  ORCA_API static Collective Reduce(Bytes data, DType dtype, int root,
                                    ReduceOp reduce = ReduceOp::kSum, double factor = 1.0);
  /// Copies `data` of `root` into `data` of all ranks.
  ORCA_API static Collective Broadcast(Bytes data, DType dtype, int root);
  /// Concatenates the ranks' `input`, equally long on every rank, into `output` of all ranks.
  ORCA_API static Collective AllGather(ConstBytes input, Bytes output, DType dtype);
  /// As above with `outputs[r]` for rank r's input; the lengths may differ by rank.
  ORCA_API static Collective AllGather(ConstBytes input, std::vector<Bytes> outputs, DType dtype);
  /// Reduces the ranks' `input`, as long as all outputs together, and leaves part r in `output` of
  /// rank r.
  ORCA_API static Collective ReduceScatter(ConstBytes input, Bytes output, DType dtype,
                                           ReduceOp reduce = ReduceOp::kSum, double factor = 1.0);
  /// As above with `inputs[r]` for rank r; the lengths may differ by rank.
  ORCA_API static Collective ReduceScatter(std::vector<ConstBytes> inputs, Bytes output,
                                           DType dtype, ReduceOp reduce = ReduceOp::kSum,
                                           double factor = 1.0);
  /// Sends part r of `input` to rank r, and puts what rank r sent into part r of `output`.
  ORCA_API static Collective AllToAll(ConstBytes input, Bytes output, DType dtype);
  ORCA_API static Collective AllToAll(std::vector<ConstBytes> inputs, std::vector<Bytes> outputs,
                                      DType dtype);
  /// Collects the ranks' `input` in `outputs` of `root`, one a rank; `outputs` is empty elsewhere.
  ORCA_API static Collective Gather(ConstBytes input, std::vector<Bytes> outputs, DType dtype,
                                    int root);
  /// Sends `inputs[r]` of `root` to `output` of rank r; `inputs` is empty elsewhere.
  ORCA_API static Collective Scatter(std::vector<ConstBytes> inputs, Bytes output, DType dtype,
                                     int root);
};

/// A pending asynchronous call. Copies refer to the same call; it goes on when all of them are
/// gone.
class ORCA_API Work {
 public:
  /// Whether the call has ended, well or not.
  bool Done() const;
  /// Waits for the end, throws the call's error. Throws kTimeout when `timeout` passes first (0: no
  /// limit of its own; the call has one already).
  void Wait(std::chrono::milliseconds timeout = std::chrono::milliseconds(0)) const;
  /// The rank that a message came from, for a finished receive from any rank; -1 before.
  int source() const;

  struct State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

/// Called once when an asynchronous call has ended, on a thread of the engine; `error` is empty
/// when all went well.
using DoneCallback = std::function<void(std::exception_ptr error, int source)>;

inline constexpr int kAnySource = -1;

/// A group of ranks that reduce, gather and exchange buffers together.
///
/// Calls are collective: every rank makes the same calls in the same order. A mismatch throws
/// kMismatch on both sides. Calls may come from several threads, but then the caller sees to it
/// that the order is the same everywhere. Blocking calls do their work on the caller's thread;
/// asynchronous ones return at once and run in the order of their start. Send and receive match by
/// peer and tag and keep no order with collectives.
///
/// After any error but kInvalidArgument the group is unusable: form it again with a higher
/// generation. The destructor tells the peers that this rank leaves, and closes all links.
class ORCA_API Communicator {
 public:
  /// Joins the group; returns when all ranks have, throws kTimeout naming the missing ones.
  static std::unique_ptr<Communicator> Connect(const Membership& membership,
                                               const CommOptions& options = {});
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world() const = 0;
  /// One line for people: "2 ranks on 1 host, shared memory".
  virtual std::string Describe() const = 0;
  /// The memory whose arrays are reduced in place without a copy.
  virtual const std::shared_ptr<Arena>& arena() const = 0;

  /// Runs one collective on the caller's thread, after the pending asynchronous ones.
  virtual void Run(const Collective& call) = 0;
  /// Starts one and returns at once. `done`, if any, is called at its end: on a thread of the
  /// group's, or on this one, before Start returns, when the call is short and all others wait in
  /// it.
  virtual Work Start(Collective call, DoneCallback done = nullptr) = 0;

  /// Sends `data` to `peer`; returns when `data` may be used again.
  virtual void Send(ConstBytes data, int peer, std::uint64_t tag = 0) = 0;
  /// Receives exactly `data.size()` bytes from `peer` (or kAnySource); returns the rank that sent
  /// them.
  virtual int Recv(Bytes data, int peer, std::uint64_t tag = 0) = 0;
  virtual Work StartSend(ConstBytes data, int peer, std::uint64_t tag = 0,
                         DoneCallback done = nullptr) = 0;
  virtual Work StartRecv(Bytes data, int peer, std::uint64_t tag = 0,
                         DoneCallback done = nullptr) = 0;

  /// Ends every pending and later call of the group, on all ranks, with kAborted and `reason`. Any
  /// thread.
  virtual void Abort(const std::string& reason) = 0;
  /// Number of collectives that this rank has begun.
  virtual std::uint64_t sequence() const = 0;
  /// Rank `peer` makes no more collective calls than the `calls` that it has made, and sends no
  /// more: a later call that this rank waits in fails at once, a Recv from `peer` soon. Any thread.
  virtual void NotePeerReturned(int peer, std::uint64_t calls) = 0;
  /// All ranks make calls again.
  virtual void ForgetReturned() = 0;
  /// For how long this rank's collectives have slept because others were not there yet. Any thread.
  virtual std::chrono::nanoseconds waited() const = 0;

  void Barrier() { Run(Collective::Barrier()); }
  void AllReduce(Bytes data, DType dtype, ReduceOp reduce = ReduceOp::kSum) {
    Run(Collective::AllReduce(data, dtype, reduce));
  }
  void Broadcast(Bytes data, DType dtype, int root) {
    Run(Collective::Broadcast(data, dtype, root));
  }
  void AllGather(ConstBytes input, Bytes output, DType dtype) {
    Run(Collective::AllGather(input, output, dtype));
  }
};

/// The bytes of a contiguous range of plain values.
template <typename Range>
auto AsBytes(Range&& range) {
  if constexpr (std::is_const_v<std::remove_reference_t<decltype(*std::data(range))>>) {
    return ConstBytes(std::as_bytes(std::span(range)));
  } else {
    return Bytes(std::as_writable_bytes(std::span(range)));
  }
}

}  // namespace orca::comm
