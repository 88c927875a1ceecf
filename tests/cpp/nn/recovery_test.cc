// Workers of the C++ Estimator that die while they train: the weights are the same to the last bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "orca/nn/estimator.h"

namespace orca::nn {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;
namespace fs = std::filesystem;

constexpr int kInputs = 6;
constexpr std::int64_t kRows = 215;
constexpr std::uint64_t kBatch = 16;
constexpr int kMarks = 6;  // rows whose worker may die, in steps 1, 3, 5, 7, 9 and 11

// --- what runs on the workers

// Workers have the driver's.
const int folder_is_set = ::setenv(
    "ORCA_TEST_FOLDER",
    (fs::temp_directory_path() / ("orca-nn-recovery-" + std::to_string(::getpid()))).c_str(),
    /*overwrite=*/0);
fs::path Folder() { return std::getenv("ORCA_TEST_FOLDER"); }
double MarkOf(int number) { return 3.25 + number / 1024.0; }

// Has what a step can depend on: weights, buffers, random numbers.
struct NetImpl : torch::nn::Module {
  NetImpl() : first(kInputs, 40), norm(40), last(40, 1) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("last", last);
  }
  Tensor forward(const Tensor& x) {
    if (!is_training() && ::unlink((Folder() / "predict").c_str()) == 0) ::raise(SIGKILL);
    const Tensor hidden = torch::relu(norm(first(x)));
    return last(torch::dropout(hidden, 0.3, is_training())).squeeze(1);
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear last;
};
TORCH_MODULE(Net);

// A part of it gets its first gradient late, and loses it again: by the rows alone, so that a step
// can be made again.
struct SometimesImpl : torch::nn::Module {
  SometimesImpl() : first(kInputs, 20), extra(kInputs, 20), last(20, 1) {
    register_module("first", first);
    register_module("extra", extra);
    register_module("last", last);
  }
  Tensor forward(const Tensor& x) {
    Tensor hidden = first(x);
    if (x[0][0].item<float>() > 0.8F) hidden = hidden + extra(x);
    return last(torch::tanh(hidden)).squeeze(1);
  }
  torch::nn::Linear first, extra, last;
};
TORCH_MODULE(Sometimes);

Model MakeNet() { return Net(); }
Model MakeSometimes() { return Sometimes(); }

using MakeOptimizer = OptimizerPointer (*)(torch::nn::Module&);

OptimizerPointer MakeSgd(torch::nn::Module& m) {
  return std::make_unique<torch::optim::SGD>(m.parameters(),
                                             torch::optim::SGDOptions(0.01).momentum(0.9));
}
OptimizerPointer MakePlainSgd(torch::nn::Module& m) {
  return std::make_unique<torch::optim::SGD>(m.parameters(), torch::optim::SGDOptions(0.01));
}
OptimizerPointer MakeAdam(torch::nn::Module& m) {
  return std::make_unique<torch::optim::Adam>(m.parameters(), torch::optim::AdamOptions(0.01));
}
OptimizerPointer MakeAdamW(torch::nn::Module& m) {
  return std::make_unique<torch::optim::AdamW>(m.parameters(),
                                               torch::optim::AdamWOptions(0.01).amsgrad(true));
}
OptimizerPointer MakeRmsprop(torch::nn::Module& m) {
  return std::make_unique<torch::optim::RMSprop>(
      m.parameters(), torch::optim::RMSpropOptions(0.003).momentum(0.5).centered(true));
}
OptimizerPointer MakeTwoGroups(torch::nn::Module& m) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  const auto all = m.parameters();
  groups.emplace_back(std::vector<Tensor>(all.begin(), all.begin() + 2),
                      std::make_unique<torch::optim::AdamOptions>(0.02));
  groups.emplace_back(std::vector<Tensor>(all.begin() + 2, all.end()),
                      std::make_unique<torch::optim::AdamOptions>(0.003));
  return std::make_unique<torch::optim::Adam>(groups, torch::optim::AdamOptions(0.01));
}
// Each worker has a copy of the weights.
OptimizerPointer MakeLbfgs(torch::nn::Module& m) {
  return std::make_unique<torch::optim::LBFGS>(
      m.parameters(), torch::optim::LBFGSOptions(0.05).max_iter(2).history_size(3));
}

// Kills its worker at the rows that are armed: once, after so many microseconds, or always.
Loss Deadly(const Tensor& output, const Tensor& target) {
  for (int i = 0; i < kMarks; ++i) {
    if (!target.eq(MarkOf(i)).any().item<bool>()) continue;
    const std::string number = std::to_string(i);
    if (fs::exists(Folder() / ("throws." + number))) throw std::runtime_error("mine");
    const fs::path once = Folder() / ("once." + number);
    int delay = 0;
    std::ifstream(once) >> delay;
    if (::unlink(once.c_str()) != 0 && !fs::exists(Folder() / ("always." + number))) continue;
    std::ofstream(Folder() / "deaths", std::ios::app) << number << "\n";
    if (delay == 0) ::raise(SIGKILL);
    std::thread([delay] {
      ::usleep(static_cast<useconds_t>(delay));
      ::kill(::getpid(), SIGKILL);
    }).detach();
  }
  return torch::mse_loss(output, target);
}

std::shared_ptr<learn::Schedule> Halving() { return learn::StepSchedule(5, 0.8); }
std::shared_ptr<learn::Schedule> OnPlateaus() {
  return learn::PlateauSchedule({.monitor = "Loss", .patience = 1});
}
std::shared_ptr<learn::Trigger> EveryFour() { return learn::SeveralIteration(4); }

// --- the driver

struct Data {
  Tensor x, y;
};

Data MakeData() {
  torch::manual_seed(3);
  const Tensor x = torch::randn({kRows, kInputs});
  Tensor y = x.sum(1);
  for (int i = 0; i < kMarks; ++i) y[7 + 31 * i] = MarkOf(i);
  return {x, y};
}

using Weights = std::vector<std::pair<std::string, Tensor>>;

struct Result {
  Weights weights;
  std::vector<EpochStats> stats;
};

void ExpectSame(const Result& found, const Result& expected) {
  ASSERT_EQ(found.weights.size(), expected.weights.size());
  for (std::size_t i = 0; i < found.weights.size(); ++i)
    EXPECT_TRUE(torch::equal(found.weights[i].second, expected.weights[i].second))
        << found.weights[i].first;
  ASSERT_EQ(found.stats.size(), expected.stats.size());
  for (std::size_t i = 0; i < found.stats.size(); ++i) {
    EXPECT_EQ(found.stats[i].epoch, expected.stats[i].epoch);
    EXPECT_EQ(found.stats[i].rows, expected.stats[i].rows);
    EXPECT_EQ(found.stats[i].steps, expected.stats[i].steps);
    EXPECT_EQ(found.stats[i].train_loss, expected.stats[i].train_loss);
    EXPECT_EQ(found.stats[i].last_loss, expected.stats[i].last_loss);
    ASSERT_EQ(found.stats[i].validation.has_value(), expected.stats[i].validation.has_value());
    if (found.stats[i].validation) {
      EXPECT_EQ(found.stats[i].validation->loss, expected.stats[i].validation->loss);
    }
  }
}

class RecoveryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(Folder());
    fs::create_directories(Folder());
  }
  void TearDown() override { fs::remove_all(Folder()); }

  static Context& context() {
    static const auto context = Context::Start({.cores = 4, .agent = ORCA_TEST_AGENT});
    return *context;
  }
  static EstimatorOptions Options(MakeOptimizer optimizer, int workers) {
    return {.model = MakeNet,
            .optimizer = optimizer,
            .loss = Deadly,
            .metrics = {"MSE"},
            .workers = workers,
            .threads = 1,
            .seed = 5};
  }
  static void Arm(const char* how, std::initializer_list<int> marks, int delay = 0) {
    for (const int mark : marks) std::ofstream(Folder() / (how + std::to_string(mark))) << delay;
  }
  static int Deaths() {
    std::ifstream file(Folder() / "deaths");
    int count = 0;
    for (std::string line; std::getline(file, line);) ++count;
    return count;
  }
  static Result Train(const EstimatorOptions& own, FitOptions options = {}) {
    Estimator estimator(context(), own);
    options.batch_size = kBatch;
    options.shuffle = false;  // Two deaths in the same step are an error.
    if (options.epochs == 1) options.epochs = 3;
    if (options.max_restarts == 3) options.max_restarts = 100;
    const Data data = MakeData();
    Result result;
    result.stats = estimator.Fit({data.x, data.y}, options);
    result.weights = estimator.weights();
    return result;
  }
};

struct Case {
  const char* name;
  MakeOptimizer optimizer;
};

class OptimizerRecoveryTest : public RecoveryTest,
                              public ::testing::WithParamInterface<std::tuple<Case, int>> {};

TEST_P(OptimizerRecoveryTest, AWorkerThatIsKilledChangesNoBit) {
  const auto& [optimizer, workers] = GetParam();
  const EstimatorOptions own = Options(optimizer.optimizer, workers);
  const Result expected = Train(own);
  Arm("once.", {0, 2, 3, 5});
  ExpectSame(Train(own), expected);
  EXPECT_EQ(Deaths(), 4);
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, OptimizerRecoveryTest,
    ::testing::Combine(::testing::Values(Case{"Sgd", MakeSgd}, Case{"PlainSgd", MakePlainSgd},
                                         Case{"Adam", MakeAdam}, Case{"AdamW", MakeAdamW},
                                         Case{"RMSprop", MakeRmsprop},
                                         Case{"TwoGroups", MakeTwoGroups},
                                         Case{"LBFGS", MakeLbfgs}),
                       ::testing::Values(1, 2, 3)),
    [](const auto& test) {
      return std::get<0>(test.param).name + std::to_string(std::get<1>(test.param));
    });

TEST_F(RecoveryTest, KillsAtAnyMomentChangeNoBit) {
  std::mt19937 chance(1);
  for (const auto optimizer : {MakeAdam, MakeRmsprop, MakeSgd}) {
    EstimatorOptions own = Options(optimizer, 2);
    for (const auto model : {MakeNet, MakeSometimes}) {
      own.model = model;
      const Result expected = Train(own);
      for (int round = 0; round < 2 * kMarks; ++round) {
        SCOPED_TRACE((optimizer == MakeAdam  ? "Adam "
                      : optimizer == MakeSgd ? "SGD "
                                             : "RMSprop ") +
                     std::string(model == MakeNet ? "Net " : "Sometimes ") + std::to_string(round));
        // In the middle of a backward pass, an update, a commit: wherever the worker is by then.
        Arm("once.", {round % kMarks}, std::uniform_int_distribution(1, 1500)(chance));
        ExpectSame(Train(own), expected);
      }
      EXPECT_GT(Deaths(), 0);
    }
  }
}

TEST_F(RecoveryTest, SchedulesClippingValidationAndCheckpointsGoOn) {
  for (const auto schedule : {Halving, OnPlateaus}) {
    EstimatorOptions own = Options(MakeAdam, 2);
    own.schedule = schedule;
    own.model_dir = Folder() / "models";
    Data data = MakeData();
    const FitOptions options{.clip_norm = 0.5,
                             .clip_value = std::pair(-0.4, 0.4),
                             .validation = Dataset(data.x.slice(0, 0, 5), data.y.slice(0, 0, 5)),
                             .checkpoint_trigger = EveryFour};
    const Result expected = Train(own, options);
    Arm("once.", {1, 2, 4});
    ExpectSame(Train(own, options), expected);
  }
}

TEST_F(RecoveryTest, ASecondFitGoesOnFromTheFirst) {
  const auto train = [](bool dies) {
    Estimator estimator(context(), Options(MakeAdam, 2));
    const Data data = MakeData();
    estimator.Fit({data.x, data.y}, {.batch_size = kBatch});
    if (dies) Arm("once.", {0, 1, 3});
    Result result;
    result.stats =
        estimator.Fit({data.x, data.y}, {.epochs = 2, .batch_size = kBatch, .shuffle = false});
    result.weights = estimator.weights();
    return result;
  };
  const Result expected = train(false);
  ExpectSame(train(true), expected);
  EXPECT_EQ(Deaths(), 3);
}

TEST_F(RecoveryTest, AsManyStepsAreMadeAsWereAskedFor) {
  for (const std::uint64_t steps : {9, 14, 20}) {
    const EstimatorOptions own = Options(MakeAdam, 2);
    const Result expected = Train(own, {.max_steps = steps});
    Arm("once.", {0, 1, 2, 3, 4, 5});
    ExpectSame(Train(own, {.max_steps = steps}), expected);
  }
}

TEST_F(RecoveryTest, TheOthersGoOnWithoutIt) {
  Arm("once.", {2});
  const Result found = Train(Options(MakeAdam, 3), {.on_failure = OnFailure::kShrink});
  ASSERT_EQ(found.stats.size(), 3U);
  EXPECT_EQ(Deaths(), 1);
  EXPECT_EQ(found.stats[2].rows, static_cast<std::uint64_t>(kRows));
  EXPECT_LT(found.stats[2].train_loss, found.stats[0].train_loss);
}

std::string ErrorOf(const EstimatorOptions& own, FitOptions options) {
  options.batch_size = kBatch;
  options.shuffle = false;
  const Data data = MakeData();
  static const auto context = Context::Start({.cores = 2, .agent = ORCA_TEST_AGENT});
  Estimator estimator(*context, own);
  const Weights before = estimator.weights();
  try {
    estimator.Fit({data.x, data.y}, options);
  } catch (const RunError& error) {
    const Weights after = estimator.weights();  // As they were.
    for (std::size_t i = 0; i < after.size(); ++i)
      EXPECT_TRUE(torch::equal(after[i].second, before[i].second));
    return error.what();
  }
  return "nothing was thrown";
}

TEST_F(RecoveryTest, AStepThatKillsWhoeverMakesItIsAnError) {
  Arm("always.", {3});
  for (const auto optimizer : {MakeAdam, MakeLbfgs}) {
    fs::remove(Folder() / "deaths");
    EXPECT_THAT(ErrorOf(Options(optimizer, 1), {.max_restarts = 50}),
                HasSubstr("rank 0 died three times in a row while it made step"));
    EXPECT_EQ(Deaths(), 3);
  }
}

TEST_F(RecoveryTest, TooManyDeathsAreAnError) {
  Arm("once.", {0, 1, 2, 3});
  EXPECT_THAT(ErrorOf(Options(MakeAdam, 2), {.max_restarts = 1}), HasSubstr("SIGKILL"));
  EXPECT_THAT(ErrorOf(Options(MakeAdam, 2), {.on_failure = OnFailure::kRaise}),
              HasSubstr("SIGKILL"));
}

TEST_F(RecoveryTest, WhatTheModelThrowsIsThrownAtOnce) {
  Arm("throws.", {2});
  EXPECT_THAT(ErrorOf(Options(MakeAdam, 2), {}), HasSubstr("mine"));
  EXPECT_EQ(Deaths(), 0);
}

TEST_F(RecoveryTest, EvaluateAndPredictBeginAnew) {
  const Data data = MakeData();
  Estimator estimator(context(), Options(MakeAdam, 2));
  const Scores expected = estimator.Evaluate({data.x, data.y}, 16);
  Arm("once.", {1, 4});
  const Scores found = estimator.Evaluate({data.x, data.y}, 16);
  EXPECT_EQ(Deaths(), 2);
  EXPECT_EQ(found.rows, expected.rows);
  EXPECT_EQ(found.loss, expected.loss);
  EXPECT_EQ(found.at("MSE"), expected.at("MSE"));
  const Tensor predicted = estimator.Predict({data.x}, 16);
  std::ofstream(Folder() / "predict") << 0;
  EXPECT_TRUE(torch::equal(estimator.Predict({data.x}, 16), predicted));
  EXPECT_FALSE(fs::exists(Folder() / "predict"));
}

}  // namespace
}  // namespace orca::nn
