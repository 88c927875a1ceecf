// The Estimator of C++ against plain loops of torch. This program is its own nursery: see main.
#include "orca/nn/estimator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "orca/core/unique_fd.h"
#include "orca/data/order.h"
#include "orca/io/array_file.h"
#include "orca/io/event_file.h"
#include "orca/io/torch_file.h"
#include "testing/main.h"

namespace orca::nn {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;
namespace F = torch::nn::functional;

constexpr int kInputs = 5;
constexpr int kClasses = 3;

// --- what runs on the workers

struct NetImpl : torch::nn::Module {
  NetImpl() : first(kInputs, 7), second(7, kClasses) {
    register_module("first", first);
    register_module("second", second);
    to(torch::kFloat64);
  }
  Tensor forward(const Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Net);

// Uses its second branch in rows whose first number is positive only, and its third never.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() : always(kInputs, kClasses), sometimes(kInputs, kClasses), never(2, 2) {
    register_module("always", always);
    register_module("sometimes", sometimes);
    register_module("never", never);
    to(torch::kFloat64);
  }
  Tensor forward(const Tensor& x) {
    Tensor y = always(x);
    if (x[0][0].item<double>() > 1.0) y = y + sometimes(x);
    return y;
  }
  torch::nn::Linear always, sometimes, never;
};
TORCH_MODULE(Branches);

struct NormedImpl : torch::nn::Module {
  NormedImpl() : linear(kInputs, 4), norm(4), last(4, kClasses) {
    register_module("linear", linear);
    register_module("norm", norm);
    register_module("last", last);
    to(torch::kFloat64);
  }
  Tensor forward(const Tensor& x) { return last(norm(linear(x))); }
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear last;
};
TORCH_MODULE(Normed);

struct TwoInputsImpl : torch::nn::Module {
  TwoInputsImpl() : linear(kInputs, kClasses) {
    register_module("linear", linear)->to(torch::kFloat64);
  }
  Tensor forward(const Tensor& a, const Tensor& b) { return linear(a) + linear(b); }
  torch::nn::Linear linear;
};
TORCH_MODULE(TwoInputs);

// One weight under two names.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    first = register_module("first", torch::nn::Linear(kInputs, kInputs));
    second = register_module("second", torch::nn::Linear(kInputs, kClasses));
    to(torch::kFloat64);
    again = register_parameter("again", first->weight);
  }
  Tensor forward(const Tensor& x) {
    return second(torch::tanh(torch::matmul(torch::tanh(first(x)), again)));
  }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  Tensor again;
};

// A parameter whose elements lie column by column.
struct TransposedImpl : torch::nn::Module {
  TransposedImpl() {
    weight = register_parameter("weight", torch::randn({kClasses, kInputs}, torch::kFloat64).t());
  }
  Tensor forward(const Tensor& x) { return torch::matmul(x, weight); }
  Tensor weight;
};

// Learns a random number that it draws in each step.
struct DrawingImpl : torch::nn::Module {
  DrawingImpl() { drawn = register_parameter("drawn", torch::zeros({1}, torch::kFloat64)); }
  Tensor forward(const Tensor& x) {
    return x.narrow(1, 0, 1) * 0.0 + drawn * torch::rand({1}, torch::kFloat64);
  }
  Tensor drawn;
};

Model MakeTied() { return std::make_shared<TiedImpl>(); }
Model MakeTransposed() { return std::make_shared<TransposedImpl>(); }
Model MakeDrawing() { return std::make_shared<DrawingImpl>(); }
Model MakeBilinear() {
  torch::nn::Sequential made(torch::nn::Bilinear(kInputs, kInputs, kClasses));
  made->to(torch::kFloat64);
  return made;
}
Model MakeNet() { return Net(); }
Model MakeBranches() { return Branches(); }
Model MakeNormed() { return Normed(); }
Model MakeTwoInputs() { return TwoInputs(); }

using MakeOptimizer = OptimizerPointer (*)(torch::nn::Module&);

OptimizerPointer MakeSgd(torch::nn::Module& m) {
  return std::make_unique<torch::optim::SGD>(
      m.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
}
OptimizerPointer MakePlainSgd(torch::nn::Module& m) {
  return std::make_unique<torch::optim::SGD>(m.parameters(), torch::optim::SGDOptions(0.1));
}
OptimizerPointer MakeAdam(torch::nn::Module& m) {
  return std::make_unique<torch::optim::Adam>(
      m.parameters(), torch::optim::AdamOptions(0.01).amsgrad(true).weight_decay(0.01));
}
OptimizerPointer MakeAdamW(torch::nn::Module& m) {
  return std::make_unique<torch::optim::AdamW>(m.parameters(), torch::optim::AdamWOptions(0.01));
}
OptimizerPointer MakeRmsprop(torch::nn::Module& m) {
  return std::make_unique<torch::optim::RMSprop>(
      m.parameters(), torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
}
OptimizerPointer MakeAdagrad(torch::nn::Module& m) {
  return std::make_unique<torch::optim::Adagrad>(m.parameters(),
                                                 torch::optim::AdagradOptions(0.05));
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
OptimizerPointer MakeLbfgs(torch::nn::Module& m) {
  return std::make_unique<torch::optim::LBFGS>(
      m.parameters(), torch::optim::LBFGSOptions(0.1).max_iter(4).history_size(5));
}
// An optimizer of the user's own: nobody knows what it looks at.
struct Scaled : torch::optim::SGD {
  using SGD::SGD;
  Tensor step(LossClosure closure = nullptr) override {
    for (auto& group : param_groups())
      for (Tensor& parameter : group.params())
        if (parameter.grad().defined())
          parameter.mutable_grad() = parameter.grad() / (parameter.grad().norm() + 1.0);
    return SGD::step(closure);
  }
};
OptimizerPointer MakeScaled(torch::nn::Module& m) {
  return std::make_unique<Scaled>(m.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
}

Loss CrossEntropy(const Tensor& output, const Tensor& target) {
  return F::cross_entropy(output, target);
}
Loss SummedCrossEntropy(const Tensor& output, const Tensor& target) {
  return F::cross_entropy(output, target, F::CrossEntropyFuncOptions().reduction(torch::kSum));
}
// Label 0 does not count.
Loss IgnoringCrossEntropy(const Tensor& output, const Tensor& target) {
  const double counted = target.ne(0).sum().item<double>();
  if (counted == 0.0) return {output.sum() * 0.0, 0.0};
  return {F::cross_entropy(output, target, F::CrossEntropyFuncOptions().ignore_index(0)), counted};
}
Loss FailsOnLabelTwo(const Tensor& output, const Tensor& target) {
  if (target.eq(2).any().item<bool>()) throw std::runtime_error("label 2 on purpose");
  return F::cross_entropy(output, target);
}
OptimizerPointer MakeOneFrozenGroup(torch::nn::Module& m) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  const auto all = m.parameters();
  groups.emplace_back(std::vector<Tensor>(all.begin(), all.begin() + 2),
                      std::make_unique<torch::optim::SGDOptions>(0.1));
  groups.emplace_back(std::vector<Tensor>(all.begin() + 2, all.end()),
                      std::make_unique<torch::optim::SGDOptions>(0.0));
  return std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.1));
}
Loss Itself(const Tensor& output, const Tensor&) { return output.sum(); }
Loss NotANumbersWeight(const Tensor& output, const Tensor& target) {
  return {F::cross_entropy(output, target), std::numeric_limits<double>::quiet_NaN()};
}
std::shared_ptr<learn::Schedule> OnPlateaus() {
  return learn::PlateauSchedule({.monitor = "score", .patience = 1, .mode = "max"});
}
std::shared_ptr<learn::Schedule> OnPlateausOfTheLoss() {
  return learn::PlateauSchedule({.monitor = "Loss", .patience = 1});
}
std::shared_ptr<learn::Trigger> EveryFive() { return learn::SeveralIteration(5); }
std::shared_ptr<learn::Trigger> EverySecond() { return learn::SeveralIteration(2); }
std::shared_ptr<learn::Schedule> Halving() { return learn::StepSchedule(3, 0.5); }

// --- the reference

struct Data {
  Tensor x, y;
};

Data MakeData(std::int64_t rows, std::uint64_t seed) {
  torch::manual_seed(seed);
  return {torch::randn({rows, kInputs}, torch::kFloat64),
          torch::randint(kClasses, {rows}, torch::kInt64)};
}

struct Plan {
  std::uint64_t batch_size = 8;
  int epochs = 2;
  bool shuffle = false;
  std::uint64_t seed = 5;
  double clip_norm = 0.0;
  bool halves = false;
};

// One process, one loop: what the workers together must equal.
Model TrainPlainly(Model (*make)(), MakeOptimizer optimizer,
                   Loss (*loss)(const Tensor&, const Tensor&), const Data& data, const Plan& plan) {
  torch::manual_seed(plan.seed);
  Model model = make();
  const OptimizerPointer made = optimizer(model.module());
  model.module().train();
  int iteration = 0;
  const double rate = made->param_groups()[0].options().get_lr();
  for (int epoch = 0; epoch < plan.epochs; ++epoch) {
    const data::EpochOrder order({.rows = static_cast<std::uint64_t>(data.x.size(0)),
                                  .batch_size = plan.batch_size,
                                  .shuffle = plan.shuffle,
                                  .seed = plan.seed,
                                  .epoch = static_cast<std::uint64_t>(epoch)});
    for (std::uint64_t step = 0; step < order.steps(); ++step) {
      const auto range = order.Positions(step);
      std::vector<std::int64_t> rows;
      for (auto at = range.begin; at < range.end; ++at)
        rows.push_back(static_cast<std::int64_t>(order.Row(at)));
      const Tensor index = torch::tensor(rows);
      const auto backward = [&] {
        made->zero_grad();
        const Loss found =
            loss(model.Forward({data.x.index_select(0, index)}), data.y.index_select(0, index));
        found.value.backward();
        return found.value;
      };
      if (plan.halves)
        for (auto& group : made->param_groups())
          group.options().set_lr(rate * std::pow(0.5, iteration / 3));
      if (dynamic_cast<torch::optim::LBFGS*>(made.get()) != nullptr) {
        made->step(backward);
      } else {
        backward();
        if (plan.clip_norm > 0)
          torch::nn::utils::clip_grad_norm_(model.module().parameters(), plan.clip_norm);
        made->step();
      }
      ++iteration;
    }
  }
  return model;
}

// Of those that the system gives to nobody who asks for any port.
int FreePort() {
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const int port = 10000 + (::getpid() * 31 + attempt) % 20000;
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return port;
  }
  return 0;
}

void ExpectSameWeights(const Estimator& estimator, const Model& reference, double tolerance) {
  const auto expected = reference.module().named_parameters();
  const auto found = estimator.weights();
  for (const auto& [name, tensor] : found) {
    if (!expected.contains(name)) continue;
    const Tensor difference = (tensor - expected[name].detach()).abs();
    const double scale = std::max(expected[name].detach().abs().max().item<double>(), 1e-3);
    EXPECT_LE(difference.max().item<double>() / scale, tolerance) << name;
  }
}

class EstimatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("orca-nn-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static Context& context() {
    static const auto context = Context::Start({.cores = 4, .agent = ORCA_TEST_AGENT});
    return *context;
  }
  static Estimator Make(Model (*model)(), MakeOptimizer optimizer, int workers,
                        Loss (*loss)(const Tensor&, const Tensor&) = CrossEntropy) {
    return Estimator(context(), {.model = model,
                                 .optimizer = optimizer,
                                 .loss = loss,
                                 .metrics = {"Accuracy"},
                                 .workers = workers,
                                 .threads = 1,
                                 .seed = 5});
  }

  std::filesystem::path folder_;
};

struct Case {
  const char* name;
  MakeOptimizer optimizer;
};

class OptimizerTest : public EstimatorTest,
                      public ::testing::WithParamInterface<std::tuple<Case, int>> {};

TEST_P(OptimizerTest, WorkersTogetherEqualOneProcess) {
  const auto& [optimizer, workers] = GetParam();
  // 43 rows in batches of 8: the last one is ragged, and smaller than some worlds.
  const Data data = MakeData(43, 1);
  const Plan plan{.batch_size = 8, .epochs = 3, .shuffle = true};
  Estimator estimator = Make(MakeNet, optimizer.optimizer, workers);
  const auto stats =
      estimator.Fit({data.x, data.y}, {.epochs = plan.epochs, .batch_size = plan.batch_size});
  ASSERT_EQ(stats.size(), 3U);
  EXPECT_EQ(stats[2].epoch, 3U);
  EXPECT_EQ(stats[2].rows, 43U);
  EXPECT_EQ(stats[2].steps, 6U);
  // LBFGS divides by differences, which enlarges what was rounded.
  const double tolerance = optimizer.optimizer == MakeLbfgs ? 1e-9 : 1e-12;
  ExpectSameWeights(estimator, TrainPlainly(MakeNet, optimizer.optimizer, CrossEntropy, data, plan),
                    tolerance);
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, OptimizerTest,
    ::testing::Combine(::testing::Values(Case{"Sgd", MakeSgd}, Case{"PlainSgd", MakePlainSgd},
                                         Case{"Adam", MakeAdam}, Case{"AdamW", MakeAdamW},
                                         Case{"RMSprop", MakeRmsprop}, Case{"Adagrad", MakeAdagrad},
                                         Case{"TwoGroups", MakeTwoGroups}, Case{"LBFGS", MakeLbfgs},
                                         Case{"Own", MakeScaled}),
                       ::testing::Values(1, 2, 3)),
    [](const auto& test) {
      return std::get<0>(test.param).name + std::to_string(std::get<1>(test.param));
    });

TEST_F(EstimatorTest, LossesAreWeighedByWhatTheyWereDividedBy) {
  const Data data = MakeData(29, 2);
  const Plan plan{.batch_size = 7};
  for (const auto loss : {IgnoringCrossEntropy, SummedCrossEntropy}) {
    Estimator estimator(context(), {.model = MakeNet,
                                    .optimizer = MakePlainSgd,
                                    .loss = loss,
                                    .sums_loss = loss == SummedCrossEntropy,
                                    .workers = 3,
                                    .threads = 1,
                                    .seed = 5});
    estimator.Fit({data.x, data.y}, {.epochs = 2, .batch_size = 7, .shuffle = false});
    ExpectSameWeights(estimator, TrainPlainly(MakeNet, MakePlainSgd, loss, data, plan), 1e-12);
  }
}

TEST_F(EstimatorTest, ParametersWithoutAGradientAreLeftAlone) {
  const Data data = MakeData(40, 3);
  const Plan plan{.batch_size = 4, .epochs = 3};
  // Each step's rows are one worker's first: the branch is taken by the same rows in both.
  Estimator estimator = Make(MakeBranches, MakeAdam, 1);
  estimator.Fit({data.x, data.y}, {.epochs = 3, .batch_size = 4, .shuffle = false});
  const Model reference = TrainPlainly(MakeBranches, MakeAdam, CrossEntropy, data, plan);
  ExpectSameWeights(estimator, reference, 1e-12);
  torch::manual_seed(5);
  const Model untrained = MakeBranches();
  const auto before = untrained.module().named_parameters();
  for (const auto& [name, tensor] : estimator.weights())
    EXPECT_EQ(torch::equal(tensor, before[name]), name.starts_with("never")) << name;
  // On two workers one of them may have no gradient of a branch.
  Estimator on_two = Make(MakeBranches, MakeAdam, 2);
  on_two.Fit({data.x, data.y}, {.epochs = 3, .batch_size = 4, .shuffle = false});
  for (const auto& [name, tensor] : on_two.weights())
    EXPECT_EQ(torch::equal(tensor, before[name]), name.starts_with("never")) << name;
}

TEST_F(EstimatorTest, GradientsAreClippedWhenTheyAreJoined) {
  const Data data = MakeData(30, 4);
  const Plan plan{.batch_size = 10, .clip_norm = 0.05};
  for (const auto optimizer : {MakePlainSgd, MakeSgd}) {
    Estimator estimator = Make(MakeNet, optimizer, 2);
    estimator.Fit({data.x, data.y},
                  {.epochs = 2, .batch_size = 10, .shuffle = false, .clip_norm = 0.05});
    ExpectSameWeights(estimator, TrainPlainly(MakeNet, optimizer, CrossEntropy, data, plan), 1e-9);
  }
}

TEST_F(EstimatorTest, ASchedulesRatesAreUsedAndGoOn) {
  const Data data = MakeData(30, 4);
  const EstimatorOptions options{.model = MakeNet,
                                 .optimizer = MakePlainSgd,
                                 .loss = CrossEntropy,
                                 .schedule = Halving,
                                 .workers = 2,
                                 .threads = 1,
                                 .seed = 5};
  Estimator estimator(context(), options);
  for (int i = 0; i < 3; ++i)
    estimator.Fit({data.x, data.y}, {.epochs = 1, .batch_size = 8, .shuffle = false});
  const Plan plan{.batch_size = 8, .epochs = 3, .halves = true};
  ExpectSameWeights(estimator, TrainPlainly(MakeNet, MakePlainSgd, CrossEntropy, data, plan),
                    1e-12);
}

TEST_F(EstimatorTest, ASchedulesGroupsKeepTheirRatios) {
  const Data data = MakeData(30, 4);
  Estimator estimator(context(), {.model = MakeNet,
                                  .optimizer = MakeOneFrozenGroup,
                                  .loss = CrossEntropy,
                                  .schedule = Halving,
                                  .workers = 2,
                                  .threads = 1,
                                  .seed = 5});
  const auto before = estimator.weights();
  estimator.Fit({data.x, data.y}, {.epochs = 2, .batch_size = 10});
  const auto after = estimator.weights();
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_EQ(torch::equal(before[i].second, after[i].second), i >= 2) << before[i].first;
}

TEST_F(EstimatorTest, APlateauSeesLossAndScoreInEveryFitAndAfterACheckpoint) {
  const Data data = MakeData(30, 4);
  for (const auto schedule : {OnPlateaus, OnPlateausOfTheLoss}) {
    const EstimatorOptions options{.model = MakeNet,
                                   .optimizer = MakePlainSgd,
                                   .loss = CrossEntropy,
                                   .metrics = {"Accuracy"},
                                   .schedule = schedule,
                                   .workers = 2,
                                   .threads = 1,
                                   .seed = 5};
    FitOptions fit{.epochs = 1, .batch_size = 10, .validation = Dataset(data.x, data.y)};
    Estimator estimator(context(), options);
    estimator.Fit({data.x, data.y}, fit);
    estimator.SaveCheckpoint(folder_ / "p");  // Its best value is infinite as yet.
    estimator.LoadCheckpoint(folder_ / "p");
    fit.epochs = 2;
    estimator.Fit({data.x, data.y}, fit);
    estimator.Fit({data.x, data.y}, fit);
    estimator.SaveCheckpoint(folder_ / "p");
    Estimator other(context(), options);
    other.LoadCheckpoint(folder_ / "p");
    other.Fit({data.x, data.y}, fit);
    estimator.Fit({data.x, data.y}, fit);
    ExpectSameWeights(other, estimator.model(), 0.0);
    std::filesystem::remove_all(folder_ / "p");
  }
}

TEST_F(EstimatorTest, TiedAndTransposedParametersEqualOneProcess) {
  // 7 rows in batches of 6: two of three workers have none in the last step.
  const Data data = MakeData(7, 17);
  const Plan plan{.batch_size = 6, .epochs = 3};
  for (const auto model : {MakeTied, MakeTransposed}) {
    for (const auto optimizer : {MakePlainSgd, MakeScaled}) {
      Estimator estimator = Make(model, optimizer, 3);
      estimator.Fit({data.x, data.y}, {.epochs = 3, .batch_size = 6, .shuffle = false});
      if (model == MakeTransposed)
        ExpectSameWeights(estimator, TrainPlainly(model, optimizer, CrossEntropy, data, plan),
                          1e-12);
      Estimator alone = Make(model, optimizer, 1);
      alone.Fit({data.x, data.y}, {.epochs = 3, .batch_size = 6, .shuffle = false});
      ExpectSameWeights(estimator, alone.model(), 1e-12);
    }
  }
}

TEST_F(EstimatorTest, LbfgsIsClipped) {
  const Data data = MakeData(20, 18);
  Estimator estimator = Make(MakeNet, MakeLbfgs, 2);
  const auto before = estimator.weights();
  estimator.Fit({data.x, data.y}, {.batch_size = 20, .clip_norm = 1e-9});
  const auto after = estimator.weights();
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_LT((before[i].second - after[i].second).abs().max().item<double>(), 1e-6);
}

TEST_F(EstimatorTest, EachFitDrawsItsOwnRandomNumbersAndTheDriverKeepsItsOwn) {
  torch::manual_seed(3);
  const Tensor expected = torch::rand({1});
  torch::manual_seed(3);
  Estimator estimator = Make(MakeDrawing, MakePlainSgd, 1, Itself);
  EXPECT_TRUE(torch::equal(torch::rand({1}), expected));
  const Data data = MakeData(4, 19);
  std::vector<double> steps{0.0};
  for (int i = 0; i < 2; ++i) {
    estimator.Fit({data.x, data.y}, {.batch_size = 4});
    steps.push_back(estimator.weights()[0].second.item<double>());
  }
  EXPECT_NE(steps[1], 0.0);
  EXPECT_NE(steps[2] - steps[1], steps[1]);
}

TEST_F(EstimatorTest, ACheckpointOfAnEpochsLastStepBeginsTheNextOne) {
  const Data data = MakeData(40, 20);
  const EstimatorOptions options{.model = MakeNet,
                                 .optimizer = MakeAdam,
                                 .loss = CrossEntropy,
                                 .workers = 2,
                                 .threads = 1,
                                 .seed = 5,
                                 .model_dir = folder_ / "m"};
  Estimator estimator(context(), options);
  estimator.Fit({data.x, data.y}, {.epochs = 1, .batch_size = 8, .checkpoint_trigger = EveryFive});
  Estimator other(context(), options);
  other.LoadCheckpoint(folder_ / "m");
  EXPECT_EQ(other.Fit({data.x, data.y}, {.batch_size = 8})[0].epoch, 2U);
}

TEST_F(EstimatorTest, AStateOfAnotherOptimizerIsRefused) {
  const Data data = MakeData(20, 21);
  Estimator adam = Make(MakeNet, MakeAdam, 1);
  adam.Fit({data.x, data.y}, {.batch_size = 8});
  adam.SaveCheckpoint(folder_ / "c");
  for (const auto optimizer : {MakeSgd, MakeScaled}) {
    Estimator other = Make(MakeNet, optimizer, 1);
    other.LoadCheckpoint(folder_ / "c");
    try {
      other.Fit({data.x, data.y}, {.batch_size = 8});
      FAIL() << "Adam's moments in another optimizer";
    } catch (const RunError& error) {
      EXPECT_THAT(error.what(), HasSubstr("optimizer of another class"));
    }
  }
}

TEST_F(EstimatorTest, EvaluateAndPredictEqualTheModel) {
  const Data data = MakeData(37, 6);
  for (const int workers : {1, 2, 3}) {
    Estimator estimator = Make(MakeNet, MakeAdam, workers);
    estimator.Fit({data.x, data.y}, {.epochs = 1, .batch_size = 8});
    const Model model = estimator.model();
    const Tensor expected = model.Forward({data.x});
    const Tensor found = estimator.Predict({data.x}, 5);
    ASSERT_EQ(found.sizes(), expected.sizes());
    EXPECT_TRUE(torch::allclose(found, expected, 1e-12, 1e-12));
    const Scores scores = estimator.Evaluate({data.x, data.y}, 8);
    EXPECT_EQ(scores.rows, 37U);
    EXPECT_NEAR(scores.loss, F::cross_entropy(expected, data.y).item<double>(), 1e-12);
    EXPECT_DOUBLE_EQ(scores.at("Accuracy"),
                     expected.argmax(1).eq(data.y).to(torch::kFloat64).mean().item<double>());
    EXPECT_THROW(scores.at("Auc"), Error);
  }
}

TEST_F(EstimatorTest, FewerRowsThanWorkersAreEachUsedOnce) {
  for (const std::int64_t rows : {0, 1, 2}) {
    const Data data = MakeData(rows, 7);
    Estimator estimator = Make(MakeNet, MakeAdam, 3);
    const auto stats = estimator.Fit({data.x, data.y}, {.epochs = 1, .batch_size = 8});
    EXPECT_EQ(stats[0].rows, static_cast<std::uint64_t>(rows));
    EXPECT_EQ(estimator.Evaluate({data.x, data.y}).rows, static_cast<std::uint64_t>(rows));
    EXPECT_EQ(estimator.Predict({data.x}).size(0), rows);
    EXPECT_EQ(estimator.Fit({data.x, data.y}, {.epochs = 2}).size(), 2U);
  }
}

TEST_F(EstimatorTest, ModelsTakeSeveralTensors) {
  const Data data = MakeData(20, 8);
  Estimator estimator = Make(MakeTwoInputs, MakeSgd, 2);
  const Dataset both(std::vector<Tensor>{data.x, data.x * 2}, data.y);
  estimator.Fit(both, {.epochs = 2, .batch_size = 6});
  EXPECT_EQ(estimator.Predict(both).size(0), 20);
  EXPECT_EQ(Make(MakeBilinear, MakeSgd, 2).Predict(both).size(1), kClasses);
  try {
    estimator.Predict({data.x});
    FAIL() << "one tensor for two";
  } catch (const RunError& error) {
    EXPECT_THAT(error.what(), HasSubstr("does not take 1 tensors"));
  }
}

TEST_F(EstimatorTest, RunningStatisticsAreTheMeanOverTheWorkers) {
  const Data data = MakeData(40, 9);
  Estimator estimator = Make(MakeNormed, MakePlainSgd, 2);
  estimator.Fit({data.x, data.y}, {.epochs = 1, .batch_size = 40, .shuffle = false});
  torch::manual_seed(5);
  Normed net;
  const Tensor out = net->linear(data.x).detach();
  const Tensor mean = (out.narrow(0, 0, 20).mean(0) + out.narrow(0, 20, 20).mean(0)) / 2 * 0.1;
  for (const auto& [name, tensor] : estimator.weights()) {
    if (name == "norm.running_mean") {
      EXPECT_TRUE(torch::allclose(tensor, mean, 1e-9, 1e-12));
    } else if (name == "norm.num_batches_tracked") {
      EXPECT_EQ(tensor.item<std::int64_t>(), 1);
    }
  }
}

TEST_F(EstimatorTest, ACheckpointGoesOnWithAnotherNumberOfWorkers) {
  const Data data = MakeData(40, 10);
  const Plan plan{.batch_size = 8, .epochs = 4, .shuffle = true};
  for (const auto optimizer : {MakeAdam, MakeSgd, MakeRmsprop, MakeAdagrad, MakeScaled}) {
    Estimator first = Make(MakeNet, optimizer, 3);
    first.Fit({data.x, data.y}, {.epochs = 2, .batch_size = 8});
    first.SaveCheckpoint(folder_ / "all");
    Estimator second = Make(MakeNet, optimizer, 2);
    second.LoadCheckpoint(folder_ / "all");
    const auto stats = second.Fit({data.x, data.y}, {.epochs = 2, .batch_size = 8});
    EXPECT_EQ(stats[0].epoch, 3U);
    ExpectSameWeights(second, TrainPlainly(MakeNet, optimizer, CrossEntropy, data, plan), 1e-12);
    std::filesystem::remove_all(folder_ / "all");
  }
}

TEST_F(EstimatorTest, TriggersWriteCheckpointsAndEventsAreThere) {
  const Data data = MakeData(40, 11);
  const EstimatorOptions options{.model = MakeNet,
                                 .optimizer = MakeAdam,
                                 .loss = CrossEntropy,
                                 .metrics = {"Accuracy"},
                                 .workers = 2,
                                 .threads = 1,
                                 .seed = 5,
                                 .model_dir = folder_ / "m",
                                 .log_dir = folder_ / "l"};
  Estimator estimator(context(), options);
  const auto stats = estimator.Fit({data.x, data.y}, {.epochs = 2,
                                                      .batch_size = 8,
                                                      .validation = Dataset(data.x, data.y),
                                                      .checkpoint_trigger = EverySecond});
  ASSERT_TRUE(stats[1].validation);
  EXPECT_EQ(stats[1].validation->rows, 40U);
  EXPECT_DOUBLE_EQ(stats[1].validation->at("Accuracy"),
                   estimator.Evaluate({data.x, data.y}).at("Accuracy"));
  EXPECT_EQ(io::ReadScalars(folder_ / "l" / "train", "Loss").size(), 10U);
  EXPECT_EQ(io::ReadScalars(folder_ / "l" / "validation", "Accuracy").size(), 2U);
  Estimator other(context(), options);
  // Those before the last may have been passed over: training does not wait for the disk.
  other.LoadCheckpoint(folder_ / "m", 10);
  ExpectSameWeights(other, estimator.model(), 0.0);
  other.Fit({data.x, data.y}, {.epochs = 1, .batch_size = 8, .shuffle = false, .max_steps = 1});
  other.LoadCheckpoint(folder_ / "m");
  ExpectSameWeights(other, estimator.model(), 0.0);
  EXPECT_THROW(other.LoadCheckpoint(folder_ / "m", 7), Error);
}

TEST_F(EstimatorTest, SavedWeightsAreLoadedAndOthersAreRefused) {
  const Data data = MakeData(20, 12);
  Estimator estimator = Make(MakeNet, MakeSgd, 2);
  estimator.Fit({data.x, data.y}, {.batch_size = 8});
  estimator.Save(folder_ / "net.pt");
  Estimator fresh = Make(MakeNet, MakeSgd, 1);
  fresh.Load(folder_ / "net.pt");
  ExpectSameWeights(fresh, estimator.model(), 0.0);
  Estimator other = Make(MakeBranches, MakeSgd, 1);
  try {
    other.Load(folder_ / "net.pt");
    FAIL() << "weights of another model";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("always.weight"));
  }
  std::ofstream(folder_ / "text") << "no tensors";
  EXPECT_THROW(fresh.Load(folder_ / "text"), Error);
  EXPECT_THROW(fresh.Load(folder_ / "missing"), Error);
}

TEST_F(EstimatorTest, F30WhatIsNotFiniteIsNamedOrSkipped) {
  Data data = MakeData(32, 13);
  data.x[20][0] = std::numeric_limits<double>::quiet_NaN();  // In step 2, of rank 1.
  const FitOptions options{.epochs = 1, .batch_size = 8, .shuffle = false};
  Estimator estimator = Make(MakeNet, MakeSgd, 2);
  const auto before = estimator.weights();
  try {
    estimator.Fit({data.x, data.y}, options);
    FAIL() << "a NaN went unseen";
  } catch (const RunError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1, step 2: the loss is not finite"));
  }
  // What failed has changed nothing.
  const auto after = estimator.weights();
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(torch::equal(before[i].second, after[i].second)) << before[i].first;
  FitOptions skipping = options;
  skipping.on_nan = OnNan::kSkip;
  const auto stats = estimator.Fit({data.x, data.y}, skipping);
  EXPECT_EQ(stats[0].skipped_steps, 1U);
  for (const auto& [name, tensor] : estimator.weights())
    EXPECT_TRUE(torch::isfinite(tensor).all().item<bool>()) << name;
}

TEST_F(EstimatorTest, F34AnErrorOfOneRankIsTheError) {
  const Data data = MakeData(32, 14);
  Estimator estimator = Make(MakeNet, MakeSgd, 2, FailsOnLabelTwo);
  try {
    estimator.Fit({data.x, data.y});
    FAIL() << "an exception was lost";
  } catch (const RunError& error) {
    EXPECT_THAT(error.what(), HasSubstr("label 2 on purpose"));
  }
}

// Two agents join over TCP, as if from two machines: each worker has a copy of the weights.
TEST_F(EstimatorTest, WorkersOfSeveralMachinesEqualOneProcess) {
  const std::string secret = folder_ / "secret";
  std::ofstream(secret) << std::string(64, 'a');
  std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
  const std::string address = "127.0.0.1:" + std::to_string(FreePort());
  std::vector<pid_t> agents;
  for (int i = 0; i < 2; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::execl(ORCA_TEST_AGENT, "orca", "agent", "--join", address.c_str(), "--secret-file",
              secret.c_str(), nullptr);
      ::_exit(127);
    }
    agents.push_back(pid);
  }
  {
    const auto cluster = Context::Start({.nodes = 2, .address = address, .secret_file = secret});
    const Data data = MakeData(43, 16);
    const Plan plan{.batch_size = 8, .epochs = 2, .shuffle = true};
    Estimator estimator(*cluster, {.model = MakeNet,
                                   .optimizer = MakeAdam,
                                   .loss = CrossEntropy,
                                   .metrics = {"Accuracy"},
                                   .workers = 4,
                                   .threads = 1,
                                   .seed = 5});
    estimator.Fit({data.x, data.y}, {.epochs = 1, .batch_size = 8});
    estimator.Fit({data.x, data.y}, {.epochs = 1, .batch_size = 8});
    ExpectSameWeights(estimator, TrainPlainly(MakeNet, MakeAdam, CrossEntropy, data, plan), 1e-12);
    EXPECT_EQ(estimator.Evaluate({data.x, data.y}).rows, 43U);
    const Tensor expected = estimator.model().Forward({data.x});
    EXPECT_TRUE(torch::allclose(estimator.Predict({data.x}), expected, 1e-12, 1e-12));
  }
  for (const pid_t pid : agents) ::waitpid(pid, nullptr, 0);
}

TEST_F(EstimatorTest, WhatIsMissingIsSaid) {
  const Data data = MakeData(8, 15);
  const auto says = [](const auto& call, const char* text) {
    try {
      call();
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  };
  says([] { Estimator(context(), {}); }, "model is null");
  says([] { Estimator(context(), {.model = MakeNet, .metrics = {"Acuracy"}}); }, "Accuracy");
  Estimator untrained(context(), {.model = MakeNet, .workers = 1});
  says([&] { untrained.Fit({data.x, data.y}); }, "needs an optimizer and a loss");
  Estimator estimator = Make(MakeNet, MakeSgd, 1);
  says([&] { estimator.Fit({data.x}); }, "no target");
  says([&] { estimator.Fit({data.x, data.y}, {.batch_size = 0}); }, "batch_size is 0");
  says([&] { estimator.Fit({data.x, data.y}, {.epochs = 0}); }, "epochs is 0");
  says([&] { estimator.Fit({data.x, data.y}, {.checkpoint_trigger = EverySecond}); }, "model_dir");
  says([&] { Dataset(data.x, data.y.narrow(0, 0, 3)); }, "8 and 3 rows");
  says(
      [&] {
        Make(MakeNet, MakeSgd, 1, NotANumbersWeight).Fit({data.x, data.y});
      },
      "the weight of a loss is");
  io::TorchValue nested = io::TorchValue::Dict();
  nested.Add("state_dict", io::TorchValue::Dict());
  io::WriteTorchFile(folder_ / "nested", nested);
  says([&] { estimator.Load(folder_ / "nested"); }, "first.weight");
}

// Goes on with what Python left as FOLDER/python, and leaves FOLDER/cpp (another one) and
// FOLDER/net.pt; x.npy and y.npy are the rows.
void GoOn(const std::filesystem::path& folder) {
  const auto context = Context::Start({.agent = ORCA_TEST_AGENT});
  Estimator estimator(*context, {.model = MakeNet,
                                 .optimizer = MakeAdam,
                                 .loss = CrossEntropy,
                                 .workers = 3,
                                 .threads = 1,
                                 .seed = 5});
  if (std::filesystem::is_directory(folder / "python")) {
    estimator.LoadCheckpoint(folder / "python");
  } else {
    estimator.Load(folder / "python");
  }
  const Dataset rows(ToTorch(io::ReadNpy(folder / "x.npy")),
                     ToTorch(io::ReadNpy(folder / "y.npy")));
  estimator.Fit(rows, {.epochs = 2, .batch_size = 8});
  estimator.SaveCheckpoint(folder / "cpp");
  estimator.Save(folder / "net.pt");
}

// For tests of Python.
const orca::testing::Command interop("interop", [](std::span<char* const> arguments) {
  GoOn(arguments[0]);
  return 0;
});

}  // namespace
}  // namespace orca::nn
