#include "orca/learn/redo_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "orca/core/error.h"
#include "testing/seed.h"
#include "testing/stamps.h"

namespace orca::learn {
namespace {

using testing::RunAndDie;
using testing::SharedBytes;

constexpr int kWorld = 3;

/// Weights of two runs (one of several chunks a share), their states, and everybody's gradients.
class RedoLogTest : public ::testing::TestWithParam<UpdateKind> {
 protected:
  RedoLogTest()
      : layout_({{.name = "a", .count = 40'000, .group = 0},
                 {.name = "b", .count = 77, .group = 1},
                 {.name = "c", .count = 2'000, .group = 1}}),
        memory_(3 * layout_.size()),
        log_(RedoLog::BlockSize(Shape())) {
    std::mt19937_64 random(testing::TestSeed());
    std::normal_distribution<float> values;
    const auto fill = [&](std::span<std::byte> bytes) {
      auto* const floats = reinterpret_cast<float*>(bytes.data());
      for (std::size_t i = 0; i < bytes.size() / sizeof(float); ++i) floats[i] = values(random);
    };
    fill(Region(0));
    for (int i = 0; i < 2; ++i) {
      auto& bank = banks_.emplace_back(layout_.size());
      fill(bank);
      gradient_.banks.push_back(bank.data());
    }
    gradient_.factors = {0.25, 0.75};
    for (const FlatLayout::Run& run : layout_.Runs(std::vector<int>(3, 0))) {
      UpdatePart part{.run = run, .rule = {.kind = GetParam()}, .regions = {1, 2, 0}};
      part.rule.lr = 0.01 + run.group;
      part.rule.momentum = 0.9;
      part.rule.weight_decay = 0.1;
      parts_.push_back(part);
    }
  }

  static RedoLog::Shape Shape() { return {.world = kWorld, .parts = 3}; }
  std::span<std::byte> Region(std::size_t i) const {
    return memory_.bytes().subspan(i * layout_.size(), layout_.size());
  }
  RedoLog Open() const { return {log_.bytes(), Shape(), {Region(0), Region(1), Region(2)}}; }
  void Step(int rank, std::uint64_t number) const {
    Open().Update(rank, number, {.loss = 0.5, .rows = 9}, parts_, gradient_);
  }
  std::vector<std::byte> Everything() const {
    return {memory_.bytes().begin(), memory_.bytes().end()};
  }
  void Restore(const std::vector<std::byte>& everything) const {
    std::ranges::copy(everything, memory_.bytes().begin());
  }

  FlatLayout layout_;
  SharedBytes memory_, log_;
  std::vector<std::vector<std::byte>> banks_;
  JoinedGradient gradient_;
  std::vector<UpdatePart> parts_;
};

TEST_P(RedoLogTest, IsTheOptimizersStep) {
  auto expected = Everything();
  for (const UpdatePart& part : parts_) {
    const std::size_t at = part.run.range.begin;
    UpdateSpan span{.weights = expected.data() + at};
    for (std::size_t i = 0; i < 2; ++i)
      span.states[i] = expected.data() + (i + 1) * layout_.size() + at;
    const std::vector<const void*> from = {banks_[0].data() + at, banks_[1].data() + at};
    Update(part.rule, DType::kFloat32, from, gradient_.factors, span, span,
           part.run.range.size() / sizeof(float));
  }
  for (int rank = 0; rank < kWorld; ++rank) Step(rank, 1);
  EXPECT_EQ(Everything(), expected);
}

TEST_P(RedoLogTest, IsFinishedByAnybodyWhereverAWorkerDied) {
  const auto before = Everything();
  for (int rank = 0; rank < kWorld; ++rank) Step(rank, 1);
  const auto after = Everything();
  std::uint64_t number = 2;
  for (int stamp = 0;; ++stamp, ++number) {
    Restore(before);
    // Of the others, one is done and one has not begun, or the other way around, or both are done.
    if (stamp % 3 != 0) Step(0, number);
    if (stamp % 3 != 1) Step(2, number);
    const bool ended = RunAndDie(stamp, [&] { Step(1, number); });
    // Whoever finishes may die as well, anywhere.
    std::mt19937 random(static_cast<unsigned>(stamp));
    const int again = std::uniform_int_distribution(0, 120)(random);
    RunAndDie(again, [&] { Open().Finish(number, gradient_); });
    const auto step = Open().Finish(number, gradient_);
    ASSERT_TRUE(step.has_value()) << stamp;
    EXPECT_EQ(step->loss, 0.5);
    EXPECT_EQ(step->rows, 9U);
    ASSERT_EQ(Everything(), after) << stamp;
    if (ended) break;
  }
  EXPECT_GT(number, 20U);
}

TEST_P(RedoLogTest, ThatNobodyBeganIsNotFinished) {
  const auto before = Everything();
  // Deaths before anything was changed.
  RunAndDie(2, [&] { Step(0, 7); });
  EXPECT_FALSE(Open().Finish(7, gradient_).has_value());
  EXPECT_EQ(Everything(), before);
  Step(0, 7);
  EXPECT_FALSE(Open().Finish(8, gradient_).has_value());
}

TEST_P(RedoLogTest, RefusesPartsThatAreElsewhere) {
  auto wrong = parts_;
  wrong[0].run.range.end = layout_.size() + 64;
  EXPECT_THROW(Open().Update(0, 1, {}, wrong, gradient_), Error);
  wrong = parts_;
  wrong[1].regions[0] = 3;
  EXPECT_THROW(Open().Update(0, 1, {}, wrong, gradient_), Error);
  wrong.resize(4);
  EXPECT_THROW(Open().Update(0, 1, {}, wrong, gradient_), Error);
  EXPECT_THROW(RedoLog(log_.bytes().first(64), Shape(), {}), Error);
}

INSTANTIATE_TEST_SUITE_P(Kinds, RedoLogTest,
                         ::testing::Values(UpdateKind::kSgd, UpdateKind::kAdam,
                                           UpdateKind::kAdamW));

}  // namespace
}  // namespace orca::learn
