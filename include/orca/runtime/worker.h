// A worker's side of the runtime.
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "orca/comm/communicator.h"
#include "orca/core/error.h"
#include "orca/core/export.h"
#include "orca/core/unique_fd.h"
#include "orca/data/shard_home.h"
#include "orca/runtime/parcel.h"

namespace orca::runtime {

/// One call of a function on one worker.
struct Task {
  std::uint64_t call = 0;
  int rank = 0;
  int world = 1;
  int local_rank = 0;
  int local_world = 1;
  int node = 0;
  int attempt = 0;        ///< How often the call was begun anew.
  std::string master;     ///< "address:port" on rank 0's node that was free when it joined.
  int threads = 1;        ///< For the function's own computations.
  std::vector<int> cpus;  ///< Where to run; empty: anywhere.
  Parcel parcel;          ///< The function and its arguments.
};

/// Why a task failed.
struct TaskFailure {
  std::string type;  ///< E.g. "builtins.ValueError".
  std::string text;
  std::string traceback;
  bool echo = false;  ///< Only a consequence: another rank was lost, or the call was cancelled.
  bool lost_peer = false;  ///< Another rank was out of reach.
  Parcel parcel;           ///< The error itself, for whoever asks for it.
};

/// A worker that gets this signal prints the stack of its function; see Context::PrintStacks.
inline constexpr int kStackSignal = SIGUSR1;

/// Where this process prints such a stack: to its agent, which passes it on to whoever asked, or to
/// standard error where there is none.
ORCA_API int StackOutput();
/// From now on, for as long as the process lives.
void SetStackOutput(UniqueFd output);

/// Whether an error of the engine may only be the consequence of another rank's end.
ORCA_API bool IsEcho(Code code);

/// The link of a worker process to its agent.
///
/// A thread of its own says that the process is alive, takes cancellations, and ends the process
/// and its children when the agent is gone. Next, Done, Failed and Communicator belong to one
/// thread.
class ORCA_API Worker {
 public:
  /// `agent` comes from Birth. Call it after the fork.
  explicit Worker(UniqueFd agent);
  ~Worker();

  /// Waits for the next task; nothing when it is time to leave.
  std::optional<Task> Next();
  /// Ends the task that Next returned. The driver holds `shards` from then on.
  void Done(Parcel result, const std::vector<std::shared_ptr<const data::ShardHold>>& shards = {});
  void Failed(TaskFailure failure);
  /// Whether somebody cancelled the task that Next returned.
  bool Cancelled() const;
  /// `interrupt` is called on the worker's own thread when the running task is cancelled; it makes
  /// the function stop as soon as it can. What does not stop in time is killed.
  void OnCancel(std::function<void()> interrupt);

  /// The group of all ranks of the current task; connects when it is first asked for, and is kept
  /// while the same workers run the next tasks.
  std::shared_ptr<comm::Communicator> Communicator();
  /// The shards of this node. Any thread.
  const std::shared_ptr<data::ShardHome>& shards() const;

  /// Leaves shards that this worker holds in a basket of the driver's (see Context::NewBasket), in
  /// the place of what is in it: they outlive this worker. Any thread.
  void Leave(std::uint64_t basket, std::span<const std::uint64_t> shards);

  /// How far the task is, and what it measured, for the run's log: at most ten a second, and the
  /// last one in any case. Any thread.
  void Report(std::uint64_t step, const std::map<std::string, double>& metrics);
  /// A line for the user with a level (debug, info, warning, error), as from Python's logging. Any
  /// thread.
  void Log(const std::string& logger, int level, const std::string& text);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace orca::runtime
