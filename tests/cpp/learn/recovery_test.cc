// F01, F20: native workers that train together and are killed at any stamp, again while that is
// mended. Whoever comes after them goes on, every row counts once (O1), and the weights are the
// same to the last bit (O2).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "orca/data/order.h"
#include "orca/learn/commit_log.h"
#include "orca/learn/redo_log.h"
#include "orca/learn/undo_log.h"
#include "testing/mutant.h"
#include "testing/seed.h"
#include "testing/stamps.h"

namespace orca::learn {
namespace {

using testing::Mutant;
using testing::SharedBytes;

constexpr std::size_t kRows = 37;
constexpr std::size_t kBatch = 5;
constexpr std::uint64_t kSteps = (kRows + kBatch - 1) / kBatch;
constexpr std::uint64_t kEpochs = 2;

/// What is drawn for one training.
struct Plan {
  int world = 1;
  bool undoes = false;  // an optimizer of somebody else, whose steps are taken back
  UpdateKind kind = UpdateKind::kSgd;
  std::vector<std::pair<int, int>> deaths;  // of each attempt: who, at which stamp
};

/// Everything that outlives the workers.
class Training {
 public:
  explicit Training(const Plan& plan)
      : plan_(plan),
        layout_({{.name = "a", .dtype = DType::kFloat64, .count = 2'500},
                 {.name = "b", .dtype = DType::kFloat64, .count = 30, .group = 1},
                 {.name = "ledger", .dtype = DType::kFloat64, .count = kRows, .group = 2}}),
        state_(3 * layout_.size()),
        banks_(static_cast<std::size_t>(plan.world) * layout_.size()),
        undo_(UndoLog::BlockSize(UndoShape())),
        redo_(RedoLog::BlockSize(RedoShape())),
        commits_(CommitLog::kBlockSize),
        group_(sizeof(Group)) {
    auto* const weights = reinterpret_cast<double*>(Region(0).data());
    for (std::size_t i = 0; i < layout_.size() / sizeof(double); ++i)
      weights[i] = i < Ledger() ? std::sin(static_cast<double>(i)) : 0.0;
    for (const FlatLayout::Run& run : layout_.Runs(std::vector<int>(3, 0))) {
      UpdatePart part{.run = run, .rule = {.kind = plan.kind}, .regions = {1, 2, 0}};
      part.rule.lr = 0.05;
      part.rule.momentum = 0.9;
      if (run.group == 2) part.rule = {.kind = UpdateKind::kSgd, .lr = 1};
      parts_.push_back(part);
    }
    CommitLog(commits_.bytes()).Write({.number = 1});
    for (int rank = 0; rank < plan.world; ++rank) Note(rank, 1, 0);
  }

  /// Runs until it is done; returns how often it began anew.
  int Run() {
    int attempts = 0;
    while (!Attempt(attempts)) ++attempts;
    return attempts;
  }

  std::vector<std::byte> State() const { return {state_.bytes().begin(), state_.bytes().end()}; }
  /// How often each row was trained on.
  std::vector<double> Counts() const {
    const auto* const weights = reinterpret_cast<const double*>(Region(0).data());
    return {weights + Ledger(), weights + Ledger() + kRows};
  }
  std::uint64_t RowsNoted() const {
    const Commit last = *CommitLog(commits_.bytes()).Read();
    std::uint64_t rows = 0;
    for (int rank = 0; rank < plan_.world; ++rank) rows += NoteOf(rank, last.number);
    return rows;
  }

 private:
  struct Group {
    std::atomic<int> arrived;
    std::atomic<int> round;
    std::atomic<int> broken;
  };

  UndoLog::Shape UndoShape() const {
    std::vector<std::uint64_t> regions;
    if (plan_.undoes) regions.assign(3, layout_.size());
    return {.world = plan_.world, .pieces = 9, .note = 8, .regions = regions};
  }
  RedoLog::Shape RedoShape() const { return {.world = plan_.world, .parts = 3}; }
  /// The first element that counts rows.
  std::size_t Ledger() const { return layout_.offset(2) / sizeof(double); }
  std::span<std::byte> Region(std::size_t i) const {
    return state_.bytes().subspan(i * layout_.size(), layout_.size());
  }
  std::vector<std::span<std::byte>> Regions() const { return {Region(0), Region(1), Region(2)}; }
  UndoLog Undo() const {
    return {undo_.bytes(), UndoShape(),
            plan_.undoes ? Regions() : std::vector<std::span<std::byte>>()};
  }
  RedoLog Redo() const { return {redo_.bytes(), RedoShape(), Regions()}; }
  void Note(int rank, std::uint64_t number, std::uint64_t rows) const {
    const std::vector<std::span<const std::byte>> parts = {std::as_bytes(std::span(&rows, 1))};
    Undo().Note(rank, number, parts);
  }
  std::uint64_t NoteOf(int rank, std::uint64_t number) const {
    std::uint64_t rows = 0;
    std::memcpy(&rows, Undo().NoteOf(rank, number).data(), sizeof(rows));
    return rows;
  }
  JoinedGradient Joined() const {
    JoinedGradient joined;
    for (int rank = 0; rank < plan_.world; ++rank) {
      joined.banks.push_back(banks_.bytes().data() +
                             static_cast<std::size_t>(rank) * layout_.size());
      joined.factors.push_back(1.0 / plan_.world);
    }
    return joined;
  }

  /// True when all workers came to the end.
  bool Attempt(int number) {
    auto* const group = new (group_.bytes().data()) Group{};
    Settle();
    std::vector<pid_t> children;
    for (int rank = 0; rank < plan_.world; ++rank) {
      const pid_t child = ::fork();
      if (child == 0) {
        const auto attempt = static_cast<std::size_t>(number);
        if (attempt < plan_.deaths.size() && plan_.deaths[attempt].first == rank)
          testing::DieAtStamp(plan_.deaths[attempt].second);
        Work(rank, *group);
        ::_exit(0);
      }
      children.push_back(child);
    }
    bool whole = true;
    for (std::size_t left = children.size(); left > 0; --left) {
      int status = 0;
      ::waitpid(-1, &status, 0);
      if (WIFSIGNALED(status)) group->broken = 1;
      whole = whole && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    return whole;
  }

  /// Before the next attempt: finishes the step in which somebody died, or takes it back.
  void Settle() const {
    CommitLog log(commits_.bytes());
    Commit last = *log.Read();
    if (plan_.undoes) {
      Undo().PutBack(last.number);
    } else if (Redo().Finish(last.number + 1, Joined())) {
      ++last.number;
      ++last.step;
      log.Write(last);
    }
  }

  /// Waits for the others; ends the process when one of them is dead.
  void Meet(Group& group) const {
    learn::Stamp();
    const int round = group.round;
    if (++group.arrived == plan_.world) {
      group.arrived = 0;
      ++group.round;
    }
    while (group.round == round) {
      if (group.broken != 0) ::_exit(3);
      std::this_thread::yield();
    }
    learn::Stamp();
  }

  void Work(int rank, Group& group) const {
    CommitLog log(commits_.bytes());
    Commit last = *log.Read();
    std::uint64_t rows = NoteOf(rank, last.number);
    while (last.step < kEpochs * kSteps) {
      rows += Backward(rank, last.step);
      const std::uint64_t next = last.number + 1;
      Note(rank, next, rows);
      Meet(group);
      Change(rank, next, last.step);
      Meet(group);
      last.number = next;
      ++last.step;
      if (rank == 0) log.Write(last);
    }
  }

  /// A gradient of the weights and of this worker's rows of the step; returns how many they are.
  std::uint64_t Backward(int rank, std::uint64_t step) const {
    const auto world = static_cast<std::uint64_t>(plan_.world);
    const data::Permutation order(kRows, 5 + step / kSteps);
    const std::uint64_t begin = step % kSteps * kBatch;
    const std::uint64_t end = std::min<std::uint64_t>(begin + kBatch, kRows);
    const auto* const weights = reinterpret_cast<const double*>(Region(0).data());
    auto* const gradient = reinterpret_cast<double*>(
        banks_.bytes().data() + static_cast<std::size_t>(rank) * layout_.size());
    const std::size_t count = layout_.size() / sizeof(double);
    std::fill_n(gradient, count, 0.0);
    std::uint64_t rows = 0;
    for (std::uint64_t i = begin; i < end; ++i) {
      if (i % world != static_cast<std::uint64_t>(rank)) continue;
      const auto row = static_cast<double>(order(i));
      for (std::size_t j = 0; j < Ledger(); ++j)
        gradient[j] += weights[j] * 0.01 + std::cos(row + static_cast<double>(j));
      gradient[Ledger() + order(i)] -= plan_.world;  // of which the mean is taken
      ++rows;
    }
    return rows;
  }

  void Change(int rank, std::uint64_t number, std::uint64_t step) const {
    std::vector<UpdatePart> parts = parts_;
    for (UpdatePart& part : parts) {
      part.rule.step = static_cast<double>(step + 1);
      part.rule.first = step == 0;
    }
    if (!plan_.undoes) {
      Redo().Update(rank, number, {}, parts, Joined());
      return;
    }
    std::vector<UndoLog::Piece> pieces;
    for (const UpdatePart& part : parts) {
      const auto share = FlatLayout::Share(part.run.range, rank, plan_.world);
      for (std::uint64_t region = 0; region < 3; ++region)
        pieces.push_back({region, share.begin, share.size()});
    }
    Undo().Save(rank, number, pieces);
    for (const UpdatePart& part : parts) {
      const auto share = FlatLayout::Share(part.run.range, rank, plan_.world);
      UpdateSpan span{.weights = Region(0).data() + share.begin};
      for (std::size_t i = 0; i < 2; ++i) span.states[i] = Region(i + 1).data() + share.begin;
      const JoinedGradient joined = Joined();
      std::vector<const void*> from;
      for (const std::byte* bank : joined.banks) from.push_back(bank + share.begin);
      Update(part.rule, part.run.dtype, from, joined.factors, span, span,
             share.size() / sizeof(double));
      learn::Stamp();
    }
  }

  Plan plan_;
  FlatLayout layout_;
  SharedBytes state_, banks_, undo_, redo_, commits_, group_;
  std::vector<UpdatePart> parts_;
};

Plan Drawn(std::mt19937_64& random) {
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution(low, high)(random);
  };
  Plan plan{
      .world = draw(1, 4), .undoes = draw(0, 2) == 0, .kind = static_cast<UpdateKind>(draw(0, 2))};
  for (int i = draw(1, 4); i > 0; --i)
    plan.deaths.emplace_back(draw(0, plan.world - 1), draw(0, 200));
  return plan;
}

/// What a schedule makes of a training that nobody disturbs; how often it began anew.
struct Outcome {
  bool is_same = false;
  bool is_once = false;
  int deaths = 0;
};

Outcome RunSchedule(Plan plan) {
  Training training(plan);
  Outcome outcome{.deaths = training.Run()};
  plan.deaths.clear();
  Training quiet(plan);
  quiet.Run();
  outcome.is_same = training.State() == quiet.State();
  outcome.is_once = training.Counts() == std::vector<double>(kRows, kEpochs) &&
                    training.RowsNoted() == kEpochs * kRows;
  return outcome;
}

TEST(Recovery, F01F20KillsAtAnyStampChangeNoBit) {
  const int schedules = testing::TestSchedules(testing::kSanitized ? 200 : 500);
  const std::uint64_t seed = testing::TestSeed();
  int deaths = 0;
  for (int i = 0; i < schedules; ++i) {
    std::mt19937_64 random(seed + static_cast<std::uint64_t>(i));
    const Outcome outcome = RunSchedule(Drawn(random));
    deaths += outcome.deaths;
    ASSERT_TRUE(outcome.is_same && outcome.is_once)
        << "schedule " << i << ": bits " << outcome.is_same << ", rows once " << outcome.is_once
        << "; ORCA_SCHEDULES=1 ORCA_TEST_SEED=" << seed + static_cast<std::uint64_t>(i)
        << " repeats it";
    if ((i + 1) % 1'000 == 0) {
      std::printf("%d schedules, %d deaths\n", i + 1, deaths);
      std::fflush(stdout);
    }
  }
  EXPECT_GE(deaths, schedules / 2);
}

// What the test above says when a step is neither finished nor taken back, or finished twice.
TEST(Recovery, F01F20EveryMutantIsNoticed) {
  if (testing::kSanitized) GTEST_SKIP() << "mutants are in the release build";
  for (const auto& [name, undoes] :
       {std::pair("redo-finish", false), {"redo-cursor", false}, {"undo-put-back", true}}) {
    const Mutant without(name);
    bool is_noticed = false;
    for (int i = 0; i < 200 && !is_noticed; ++i) {
      std::mt19937_64 random(testing::TestSeed() + static_cast<std::uint64_t>(i));
      Plan plan = Drawn(random);
      plan.undoes = undoes;
      const Outcome outcome = RunSchedule(plan);
      is_noticed = !outcome.is_same && !outcome.is_once;
    }
    EXPECT_TRUE(is_noticed) << name;
  }
}

}  // namespace
}  // namespace orca::learn
