// What a study knows while it is open; see orca/tune/study.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "orca/tune/store.h"
#include "orca/tune/study.h"

namespace orca::tune {

/// A mutex that tells who waits for himself: a function of the user that a study calls, and that
/// calls the study.
class StudyMutex {
 public:
  void lock();
  void unlock();

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_;
};

struct Study::State {
  State(Space given_space, StudyOptions given);

  const Space space;
  const StudyOptions options;
  Search search;
  const std::unique_ptr<Scheduler> scheduler;
  const double cardinality;
  const bool is_distinct;  // Whether no point may come twice.

  mutable StudyMutex mutex;
  // All below are guarded by `mutex`.
  std::vector<Trial> trials;
  std::int64_t running = 0;
  std::int64_t added = 0;  // From other studies; they take none of the points to evaluate.
  std::int64_t told = 0;   // With batches: the sampler knows the end of the trials before this one.
  std::int64_t best = -1;
  bool is_exhausted = false;
  std::unordered_set<std::string> seen;
  std::unordered_set<std::int64_t>
      foreign;  // Of another study: the scheduler knows nothing of them.
  std::optional<StudyStore> store;
  // Those that run, but for somebody who asks: they ran when the study was stored last, or go on.
  std::deque<std::int64_t> ready;
  std::vector<std::int64_t> stopped;  // While they were paused; nobody has heard of it yet.
  std::vector<std::string> policies;  // Of PBT.
  std::string memo;
  std::optional<Task> next_start;  // What the scheduler said to CanAsk(), for Ask().
  bool holds = false;   // Whether decisions wait, to be stored together; nobody hears of them yet.
  std::string failure;  // Why the study could not be stored: from then on it refuses everything.
  std::vector<Event> held;
  std::vector<Attribute> held_attributes;
  // From then on the state of a scheduler that changes configurations is stored with every
  // decision; others are told again what they were told, since a state grows with the trials.
  bool has_paused = false;

  // Of a trial that crashed or hung, the last time.
  struct Mishap {
    Mishap() = default;
    Mishap(std::int64_t at, const std::string& error);

    bool operator==(const Mishap&) const = default;

    std::int64_t step = 0;
    std::string essence;  // What the error says, whatever process said it.
  };
  std::unordered_map<std::int64_t, Mishap> mishaps;

  double Now() const;
  double Loss(double value) const { return options.mode == Mode::kMax ? -value : value; }
  Trial& At(std::int64_t number);
  Trial& Running(std::int64_t number);
  Observation Observe(const Trial& trial) const;

  // --- what is proposed

  bool MayAsk() const;
  // Whether nothing can come any more.
  bool IsOver() const { return is_exhausted || (running == 0 && MayAsk()); }
  std::optional<Point> Propose(std::int64_t number);
  // The sampler learns of ends at once, or batch by batch in the order of numbers.
  void TellEnds();

  // --- what becomes of a trial

  void Begin(Trial trial);
  // A trial that began, and may have ended, elsewhere.
  void Insert(const Trial& trial);
  // For the sampler it has been pruned here, until it has gone on and is told again: most of the
  // trials of a scheduler that pauses never do.
  void Pause(Trial& trial);
  void Resume(const Task& resumed);
  void Stop(Trial& trial);
  void End(Trial& trial, TrialState state);
  // Whether it is the last step of a trial, which only ends there.
  bool IsThrough(std::int64_t step) const {
    return options.scheduling.epochs > 0 && step >= options.scheduling.epochs;
  }
  Decision Decide(std::int64_t trial, std::int64_t step, double value);
  void Act(Trial& trial, std::int64_t step, Decision decision);
  void Rank(const Trial& trial);

  // --- what a caller does

  bool CanAsk();
  std::optional<Trial> Ask();
  std::optional<Trial> AskAgain();
  void Tell(std::int64_t number, double value);
  void Fail(std::int64_t number, const std::string& error);
  // What a free worker does; trials that will not go on are ended on the way.
  Task Next(bool may_start);
  std::optional<Trial> TakeReady();

  // --- what is stored

  std::string ConfigOf(const Trial& trial) const;
  void Commit(Event event, std::vector<Attribute> attributes = {});
  void CommitHeld();
  // All that reaches the store comes this way.
  void Write(std::span<const Event> events, std::span<const Attribute> attributes);
  void WriteReport(std::int64_t trial, std::int64_t step, double value);
  // `trial` -1: the study's.
  void WriteMemo(std::int64_t trial, const std::string& text);
  // Notes what PBT did.
  Attribute PolicyOf(const Task& resumed);
  void CommitStart(const Trial& trial, const std::string& config);
  // A trial of another study that has been inserted.
  void NoteAdded(const Trial& trial, std::vector<Event>& events,
                 std::vector<Attribute>& attributes);

  void Open();
  // The finished trials of an older study, in one commit: all of them, or none.
  void WarmStart();
  // What is finished there and fits this space; categories must be the same ones.
  std::vector<Trial> Translated(const StudyStore& from, const StudyInfo& old);
  void Load(std::int64_t study);
  // The scheduler as it was: from its state of the last decision, or by what it was told from the
  // begin. What was decided counts, not what it would decide now; only of the last record of all
  // nobody knows, since the study may have been killed between a report and the decision.
  void Replay(const std::vector<Event>& events, const std::vector<ReportRecord>& reports,
              const std::string& state);
  // What the scheduler said over a paused trial: it says so whether trials may start or not.
  void DecideAgain(Task::Kind kind, std::int64_t trial);
};

}  // namespace orca::tune
