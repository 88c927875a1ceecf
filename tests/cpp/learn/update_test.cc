// Every update against the textbook's formulas in long double, and against itself: cut, staged, on
// every instruction set.
#include "orca/learn/update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "learn/update_table.h"
#include "orca/comm/kernels.h"
#include "orca/core/error.h"
#include "testing/seed.h"

namespace orca::learn {
namespace {

using ::testing::HasSubstr;

using Random = std::mt19937_64;

/// Memory that begins at a cache line, as the engine's does.
template <typename T>
struct Lines {
  using value_type = T;
  static constexpr std::align_val_t kAlign{64};
  Lines() = default;
  template <typename U>
  explicit Lines(const Lines<U>&) {}
  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kAlign));
  }
  void deallocate(T* data, std::size_t) { ::operator delete(data, kAlign); }
  bool operator==(const Lines&) const = default;
};
template <typename T>
using Vector = std::vector<T, Lines<T>>;

struct Case {
  std::string name;
  UpdateRule rule;
};

/// Every option that changes the arithmetic, on its own and with those that it meets.
std::vector<Case> Cases() {
  const UpdateRule sgd{.kind = UpdateKind::kSgd, .lr = 0.1};
  const UpdateRule adam{.kind = UpdateKind::kAdam, .lr = 0.01};
  std::vector<Case> cases;
  const auto add = [&cases](const std::string& name, UpdateRule rule, auto change) {
    change(rule);
    cases.push_back({name, rule});
  };
  add("sgd", sgd, [](UpdateRule&) {});
  add("sgd, decay", sgd, [](UpdateRule& r) { r.weight_decay = 0.1; });
  add("sgd, momentum", sgd, [](UpdateRule& r) { r.momentum = 0.9; });
  add("sgd, dampening", sgd, [](UpdateRule& r) { r.momentum = 0.9, r.dampening = 0.3; });
  add("sgd, nesterov, decay", sgd,
      [](UpdateRule& r) { r.momentum = 0.8, r.nesterov = true, r.weight_decay = 0.01; });
  add("sgd, maximize", sgd, [](UpdateRule& r) { r.momentum = 0.5, r.maximize = true; });
  add("sgd, clip and scale", sgd,
      [](UpdateRule& r) { r.clips = true, r.clip_low = -0.3, r.clip_high = 0.5, r.scale = 0.7; });
  for (const bool decouples : {false, true}) {
    UpdateRule base = adam;
    base.kind = decouples ? UpdateKind::kAdamW : UpdateKind::kAdam;
    const std::string name = decouples ? "adamw" : "adam";
    add(name, base, [](UpdateRule&) {});
    add(name + ", decay", base, [](UpdateRule& r) { r.weight_decay = 0.1; });
    add(name + ", small betas", base, [](UpdateRule& r) { r.beta1 = 0.3, r.beta2 = 0.6; });
    add(name + ", amsgrad, maximize", base,
        [](UpdateRule& r) { r.amsgrad = true, r.maximize = true, r.beta2 = 0.7; });
    add(name + ", eps, clip and scale, decay", base, [](UpdateRule& r) {
      r.eps = 0.1, r.weight_decay = 0.01;
      r.clips = true, r.clip_low = -0.2, r.clip_high = 0.1, r.scale = 1.5;
    });
  }
  return cases;
}

/// Weights and states of any number of elements.
template <typename T>
struct Model {
  Vector<T> weights;
  std::vector<Vector<T>> states;

  Model(const UpdateRule& rule, std::size_t count) : weights(count) {
    states.resize(StateCount(rule), Vector<T>(count));
  }
  UpdateSpan At(std::size_t begin) {
    UpdateSpan span{.weights = weights.data() + begin};
    for (std::size_t i = 0; i < states.size(); ++i) span.states[i] = states[i].data() + begin;
    return span;
  }
  bool SameBits(const Model& other) const {
    const auto same = [](const Vector<T>& a, const Vector<T>& b) {
      return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
    };
    return same(weights, other.weights) && std::ranges::equal(states, other.states, same);
  }
};

template <typename T>
struct Gradients {
  std::vector<Vector<T>> values;
  std::vector<double> factors;

  Gradients(Random& random, std::size_t sources, std::size_t count) {
    std::normal_distribution<double> normal;
    for (std::size_t s = 0; s < sources; ++s) {
      Vector<T>& mine = values.emplace_back(count);
      for (T& value : mine) value = static_cast<T>(normal(random));
      factors.push_back(sources == 1 ? 1.0 : 1.0 / static_cast<double>(s + 2));
    }
  }
  std::vector<const void*> At(std::size_t begin) const {
    std::vector<const void*> pointers;
    for (const auto& mine : values) pointers.push_back(mine.data() + begin);
    return pointers;
  }
};

template <typename T>
constexpr DType kType = sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64;

template <typename T>
Model<T> RandomModel(Random& random, const UpdateRule& rule, std::size_t count) {
  Model<T> model(rule, count);
  std::normal_distribution<double> normal;
  for (T& value : model.weights) value = static_cast<T>(normal(random));
  return model;
}

/// The rule of step `step`, from 1.
UpdateRule At(UpdateRule rule, int step) {
  rule.step = step;
  rule.first = step == 1;
  return rule;
}

// --- The reference: the formulas of torch's documentation. ---

using Real = long double;

struct Element {
  Real weight = 0;
  Real states[3] = {};
};

void StepSgd(const UpdateRule& rule, Element& element, Real gradient) {
  gradient += rule.weight_decay * element.weight;
  if (rule.momentum != 0) {
    Real& buffer = element.states[0];
    buffer = rule.first ? gradient : rule.momentum * buffer + (1 - rule.dampening) * gradient;
    gradient = rule.nesterov ? gradient + rule.momentum * buffer : buffer;
  }
  element.weight -= rule.lr * gradient;
}

void StepAdam(const UpdateRule& rule, Element& element, Real gradient) {
  auto& [average, square, largest] = element.states;
  if (rule.kind == UpdateKind::kAdamW) {
    element.weight -= rule.lr * rule.weight_decay * element.weight;
  } else {
    gradient += rule.weight_decay * element.weight;
  }
  average = rule.beta1 * average + (1 - Real{rule.beta1}) * gradient;
  square = rule.beta2 * square + (1 - Real{rule.beta2}) * gradient * gradient;
  largest = std::max(largest, square);
  const Real average_hat = average / (1 - std::pow(Real{rule.beta1}, Real{rule.step}));
  const Real square_hat =
      (rule.amsgrad ? largest : square) / (1 - std::pow(Real{rule.beta2}, Real{rule.step}));
  element.weight -= rule.lr * average_hat / (std::sqrt(square_hat) + rule.eps);
}

void StepReference(const UpdateRule& rule, Element& element, Real gradient) {
  if (rule.clips) gradient = std::clamp<Real>(gradient, rule.clip_low, rule.clip_high);
  gradient *= rule.scale;
  if (rule.maximize) gradient = -gradient;
  rule.kind == UpdateKind::kSgd ? StepSgd(rule, element, gradient)
                                : StepAdam(rule, element, gradient);
}

template <typename T>
void FollowsTheFormulas(const Case& of, Real tolerance) {
  constexpr std::size_t kCount = 131;
  Random random(1);
  auto model = RandomModel<T>(random, of.rule, kCount);
  std::vector<Element> expected(kCount);
  for (std::size_t i = 0; i < kCount; ++i) expected[i].weight = model.weights[i];
  for (int step = 1; step <= 20; ++step) {
    const Gradients<T> gradients(random, 1 + static_cast<std::size_t>(step) % 3, kCount);
    const UpdateRule rule = At(of.rule, step);
    Update(rule, kType<T>, gradients.At(0), gradients.factors, model.At(0), model.At(0), kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      Real gradient = 0;
      for (std::size_t s = 0; s < gradients.values.size(); ++s)
        gradient += gradients.factors[s] * gradients.values[s][i];
      StepReference(rule, expected[i], gradient);
    }
  }
  const auto near = [tolerance](T value, Real wanted) {
    return std::fabs(value - wanted) <= tolerance * std::max(std::fabs(wanted), Real{1});
  };
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_PRED2(near, model.weights[i], expected[i].weight) << of.name << ", weight " << i;
    for (std::size_t s = 0; s < model.states.size(); ++s)
      EXPECT_PRED2(near, model.states[s][i], expected[i].states[s])
          << of.name << ", state " << s << ", element " << i;
  }
}

TEST(UpdateTest, TwentyStepsFollowTheFormulas) {
  for (const Case& of : Cases()) {
    FollowsTheFormulas<double>(of, 1e-13L);
    FollowsTheFormulas<float>(of, 5e-6L);
  }
}

// --- The same bits, however it is done. ---

/// Three steps of the whole, at once and in place, with the kernels of the baseline.
template <typename T>
Model<T> Whole(const Case& of, const std::vector<Gradients<T>>& gradients, Model<T> model) {
  for (std::size_t step = 0; step < gradients.size(); ++step)
    UpdateWith(*RunnableUpdates().front(), At(of.rule, static_cast<int>(step) + 1), kType<T>,
               gradients[step].At(0), gradients[step].factors, model.At(0), model.At(0),
               model.weights.size());
  return model;
}

/// The same in random cuts, the steps from one copy to another which is full of NaN.
template <typename T>
Model<T> InCuts(Random& random, const UpdateTable& table, const Case& of,
                const std::vector<Gradients<T>>& gradients, Model<T> model) {
  const std::size_t count = model.weights.size();
  for (std::size_t step = 0; step < gradients.size(); ++step) {
    Model<T> to(of.rule, count);
    std::ranges::fill(to.weights, std::numeric_limits<T>::quiet_NaN());
    for (auto& state : to.states) std::ranges::fill(state, std::numeric_limits<T>::quiet_NaN());
    for (std::size_t begin = 0; begin < count;) {
      const std::size_t size =
          std::min(std::uniform_int_distribution<std::size_t>(1, 700)(random), count - begin);
      UpdateWith(table, At(of.rule, static_cast<int>(step) + 1), kType<T>,
                 gradients[step].At(begin), gradients[step].factors, model.At(begin), to.At(begin),
                 size);
      begin += size;
    }
    model = to;
  }
  return model;
}

template <typename T>
void GivesTheSameBits(Random& random, const Case& of) {
  const auto count = std::uniform_int_distribution<std::size_t>(1, 3000)(random);
  std::vector<Gradients<T>> gradients;
  for (std::size_t sources = 1; sources <= 3; ++sources)
    gradients.emplace_back(random, sources, count);
  // Values that few loops expect, and that must not reach other elements.
  gradients[1].values[0][count / 2] = std::numeric_limits<T>::infinity();
  gradients[1].values[0][count / 3] = std::numeric_limits<T>::denorm_min();
  gradients[1].values[0][count / 4] = -T{0};
  auto model = RandomModel<T>(random, of.rule, count);
  // A momentum of SGD's is not read in the first step.
  if (of.rule.kind == UpdateKind::kSgd)
    for (auto& state : model.states) std::ranges::fill(state, std::numeric_limits<T>::max());
  const Model<T> whole = Whole(of, gradients, model);
  for (const UpdateTable* table : RunnableUpdates())
    EXPECT_TRUE(whole.SameBits(InCuts(random, *table, of, gradients, model)))
        << of.name << ", " << table->isa << ", " << sizeof(T) << " bytes, " << count << " elements";
}

TEST(UpdateTest, CutsStagedCopiesAndInstructionSetsGiveTheSameBits) {
  Random random(testing::TestSeed());
  for (int round = 0; round < (testing::kSanitized ? 2 : 10); ++round) {
    for (const Case& of : Cases()) {
      GivesTheSameBits<float>(random, of);
      GivesTheSameBits<double>(random, of);
    }
  }
}

template <typename T>
void StagesAsInPlace(Random& random, const Case& of) {
  const std::size_t count = (std::size_t{9} << 20) / sizeof(T) + 77;
  const Gradients<T> gradients(random, 2, count);
  auto model = RandomModel<T>(random, of.rule, count);
  for (auto& state : model.states)
    std::ranges::transform(gradients.values[0], state.begin(),
                           [](T value) { return value * value; });
  for (const UpdateTable* table : RunnableUpdates()) {
    UpdateRule rule = of.rule;
    rule.step = 7;
    Model<T> staged(rule, count);
    UpdateWith(*table, rule, kType<T>, gradients.At(0), gradients.factors, model.At(0),
               staged.At(0), count);
    Model<T> in_place = model;
    UpdateWith(*table, rule, kType<T>, gradients.At(0), gradients.factors, in_place.At(0),
               in_place.At(0), count);
    EXPECT_TRUE(in_place.SameBits(staged)) << of.name << ", " << table->isa;
  }
}

TEST(UpdateTest, LargeStagingAreasWhichPassTheCachesGetTheSameBits) {
  Random random(testing::TestSeed());
  for (const std::string name : {"sgd, nesterov, decay", "adamw, amsgrad, maximize"})
    for (const Case& of : Cases()) {
      if (of.name != name) continue;
      StagesAsInPlace<float>(random, of);
      StagesAsInPlace<double>(random, of);
    }
}

TEST(UpdateTest, TheJoinedGradientHasTheBitsOfAReduction) {
  constexpr std::size_t kCount = 1000;
  Random random(testing::TestSeed());
  for (std::size_t sources = 1; sources <= 5; ++sources) {
    const Gradients<float> gradients(random, sources, kCount);
    std::vector<const std::byte*> from;
    for (const void* pointer : gradients.At(0))
      from.push_back(static_cast<const std::byte*>(pointer));
    Vector<float> reduced(kCount);
    std::byte* const to[] = {reinterpret_cast<std::byte*>(reduced.data())};
    comm::Reduce(
        {.dtype = DType::kFloat32, .op = comm::ReduceOp::kPreMulSum, .factors = gradients.factors},
        from, to, kCount);
    // A first momentum is the gradient itself.
    const UpdateRule rule{.first = true, .momentum = 0.9};
    Model<float> model(rule, kCount);
    Update(rule, DType::kFloat32, gradients.At(0), gradients.factors, model.At(0), model.At(0),
           kCount);
    EXPECT_EQ(model.states[0], reduced) << sources << " sources";
  }
}

TEST(UpdateTest, AGradientMayBeOverwritten) {
  constexpr std::size_t kCount = 1500;
  Random random(2);
  const UpdateRule rule{.kind = UpdateKind::kAdam, .lr = 0.1};
  Gradients<float> gradients(random, 2, kCount);
  auto model = RandomModel<float>(random, rule, kCount);
  const Model<float> wanted = Whole<float>({"", rule}, {gradients}, model);
  UpdateSpan to = model.At(0);
  to.weights = gradients.values[1].data();
  Update(rule, DType::kFloat32, gradients.At(0), gradients.factors, model.At(0), to, kCount);
  EXPECT_EQ(gradients.values[1], wanted.weights);
}

TEST(UpdateTest, NotANumberStaysOneWhereItIs) {
  constexpr std::size_t kCount = 100;
  for (const Case& of : Cases()) {
    for (const UpdateTable* table : RunnableUpdates()) {
      Random random(3);
      std::vector<Gradients<float>> gradients(2, Gradients<float>(random, 1, kCount));
      gradients[0].values[0][17] = std::numeric_limits<float>::quiet_NaN();
      auto model = RandomModel<float>(random, of.rule, kCount);
      model = InCuts(random, *table, of, gradients, model);
      for (std::size_t i = 0; i < kCount; ++i)
        EXPECT_EQ(std::isnan(model.weights[i]), i == 17) << of.name << ", " << table->isa;
    }
  }
}

TEST(UpdateTest, WhatIsWrongIsNamed) {
  std::vector<float> values(4);
  const void* gradient[] = {values.data()};
  const double factor[] = {1.0};
  const UpdateSpan span{.weights = values.data(), .states = {values.data(), values.data()}};
  const auto message = [&](const UpdateRule& rule, DType dtype, std::size_t sources,
                           const UpdateSpan& from) -> std::string {
    try {
      Update(rule, dtype, std::span(gradient).first(sources), factor, from, span, 4);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      return error.what();
    }
    return "nothing";
  };
  const UpdateRule adam{.kind = UpdateKind::kAdam};
  EXPECT_THAT(message(adam, DType::kBFloat16, 1, span), HasSubstr("bfloat16"));
  EXPECT_THAT(message(adam, DType::kFloat32, 0, span), HasSubstr("at least one"));
  EXPECT_THAT(message(adam, DType::kFloat32, 1, {}), HasSubstr("'from' has no weights"));
  EXPECT_THAT(message(adam, DType::kFloat32, 1, {.weights = values.data()}),
              HasSubstr("state 1 of 2"));
  for (const double step : {0.0, 1.5, -3.0, std::nan(""), 1e300}) {
    UpdateRule rule = adam;
    rule.step = step;
    EXPECT_THAT(message(rule, DType::kFloat32, 1, span), HasSubstr("whole number from 1"));
  }
  EXPECT_EQ(message(adam, DType::kFloat32, 1, span), "nothing");
  EXPECT_FALSE(Supports(UpdateKind::kSgd, DType::kFloat16));
  EXPECT_TRUE(Supports(UpdateKind::kAdamW, DType::kFloat64));
}

}  // namespace
}  // namespace orca::learn
