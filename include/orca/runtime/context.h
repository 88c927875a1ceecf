// A driver's view of the machine it runs on: workers, and functions that run on them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "orca/core/export.h"
#include "orca/data/shard_home.h"
#include "orca/runtime/guest.h"
#include "orca/runtime/parcel.h"

namespace orca::runtime {

class Controller;

/// What a context may use, and its time limits.
struct ContextOptions {
  int cores = 0;            ///< 0: all that the affinity mask and the cgroup allow.
  std::size_t memory = 0;   ///< Bytes; 0: what the cgroup allows.
  std::string agent;        ///< The program "orca"; empty: the one beside the library.
  int nodes = 0;            ///< 0: an agent on this machine. Else: wait for so many to join ...
  std::string address;      ///< ... at this address ("host:port") ...
  std::string secret_file;  ///< ... that know the secret in this file.
  bool prints = true;       ///< Events are printed here; otherwise take them with NextEvent.
  std::chrono::milliseconds start_timeout{60000};  ///< For agents and nurseries to begin.
  std::chrono::milliseconds silence{
      5000};                              ///< A worker without a sign of life for so long is lost.
  std::chrono::milliseconds idle{60000};  ///< Idle workers beyond the cores leave after so long.
  std::chrono::milliseconds grace{2000};  ///< For a cancelled function to stop; then it is killed.
};

/// How a nursery (see Nursery) of some kind is started.
struct NurserySpec {
  std::string kind;  ///< Names it, e.g. "python+torch".
  std::vector<std::string> command;
  std::map<std::string, std::string> environment;
  std::string directory;
  std::map<std::string, std::string> versions;  ///< That it must have, too, by name.
};

enum class OnFailure {
  kRaise,    ///< The call fails.
  kRestart,  ///< A new worker takes the place of a dead one; all ranks begin anew.
  kShrink,   ///< The others begin anew without it.
};

/// From "raise", "restart" or "shrink"; another text throws kInvalidArgument.
ORCA_API OnFailure ParseOnFailure(const std::string& text);

/// More workers per core than this are taken for a mistake, unless a call says otherwise.
inline constexpr int kWorkersPerCore = 4;

/// A function to run on workers.
struct RunSpec {
  std::string kind;  ///< Of the nursery.
  int workers = 0;   ///< 0: one a core.
  int threads = 0;   ///< A worker's; 0: the cores divided among the workers.
  OnFailure on_failure = OnFailure::kRaise;
  int max_restarts = 3;
  bool oversubscribe = false;  ///< Permits more than kWorkersPerCore workers per core.
  Parcel parcel;               ///< The function and its arguments, for the worker's front end.
  std::vector<std::shared_ptr<const data::ShardHold>> shards;  ///< That the arguments name.
  bool lets_go = false;  ///< Its workers end with it: whoever comes next gets new ones.
};

/// Why a call failed: the first cause, in words and for programs.
struct RunFailure {
  std::string text;  ///< Names rank, host, process and cause.
  int rank = -1;
  std::string type;  ///< Of the function's exception; empty when the process died.
  std::string traceback;
  Parcel parcel;                    ///< The exception itself, for the front end.
  std::vector<std::string> others;  ///< One line for each other rank that failed, too.
  bool cancelled = false;
};

/// A call that was submitted. Any thread may use it.
class ORCA_API Run {
 public:
  virtual ~Run() = default;
  /// Whether it has ended within `timeout`.
  virtual bool Wait(std::chrono::milliseconds timeout) = 0;
  /// Results by rank; empty when it failed. Only when it has ended.
  virtual const std::vector<Parcel>& results() const = 0;
  /// Why it failed; nothing when it did not.
  virtual const std::optional<RunFailure>& failure() const = 0;
  /// Stops the function on all workers. The call ends when all have stopped, or were killed after
  /// the context's `grace`.
  virtual void Cancel(const std::string& reason) = 0;
};

/// What happens in a context, for people and front ends.
struct Event {
  enum class Kind { kOutput, kLog, kNotice };
  Kind kind = Kind::kNotice;
  int rank = -1;   ///< -1: not a worker.
  int level = 20;  ///< As in Python's logging.
  int stream = 0;  ///< 0: standard output, 1: standard error.
  std::string logger;
  std::string text;
};

/// Agents, nurseries and workers, from Start to Stop.
///
/// A thread of its own serves them. Any thread may call. Stop (or the destructor) ends every
/// process; so does the death of this process.
class ORCA_API Context {
 public:
  /// Starts an agent on this machine, or waits for those of other machines to join. Throws when
  /// that fails.
  static std::unique_ptr<Context> Start(const ContextOptions& options);
  ~Context();

  int cores() const;
  std::size_t memory() const;
  /// Whether all workers are on this machine and share its memory with this process.
  bool is_local() const;
  /// What was started, in one line.
  std::string plan() const;

  /// Starts the nursery of a kind, unless there is one.
  void Prepare(const NurserySpec& spec);
  /// Runs a function. Calls wait for one another when their workers outnumber the cores.
  std::shared_ptr<Run> Submit(RunSpec spec);
  /// The shards of this machine, in the agent's memory; or, when agents joined from elsewhere, in
  /// this process. Workers anywhere can open them.
  const std::shared_ptr<data::ShardHome>& shards() const;
  /// Where guests come in (see Guest). Only for an agent on this machine.
  Door OpenDoor();
  /// A basket that guests leave shards in.
  std::uint64_t NewBasket();
  /// Takes these shards out of a basket and drops whatever else is in it: a guest whose work was
  /// done a second time left its shards as well. Nothing can be left in it afterwards.
  std::vector<std::shared_ptr<const data::ShardHold>> EmptyBasket(
      std::uint64_t basket, const std::vector<std::uint64_t>& shards);
  /// What a guest asks; nothing when none does within `timeout`, or after Stop.
  std::optional<Question> NextQuestion(std::chrono::milliseconds timeout);
  /// Answers it; the guest then holds the shards that the reply names.
  void Answer(const Question& question, const Reply& reply);
  /// Every worker that runs a function prints its stack, as output of its rank. So does
  /// "orca stacks RUN" from outside.
  void PrintStacks();
  /// The next event, when they are not printed; nothing when none comes within `timeout`, or after
  /// Stop.
  std::optional<Event> NextEvent(std::chrono::milliseconds timeout);
  void Stop();
  bool stopped() const;

 private:
  explicit Context(std::unique_ptr<Controller> controller);
  std::unique_ptr<Controller> controller_;
};

}  // namespace orca::runtime
