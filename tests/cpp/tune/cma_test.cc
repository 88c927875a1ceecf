// CMA-ES on the functions that it must solve, and what its margins keep.
#include "tune/cma.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "orca/tune/space.h"
#include "orca/tune/study.h"
#include "tune/philox.h"

namespace orca::tune {
namespace {

using ::testing::DoubleNear;

using Objective = std::function<double(const std::vector<double>&)>;

TEST(MatrixTest, EigenvectorsDiagonaliseAndCholeskyMultipliesBack) {
  const std::size_t n = 19;
  Stream random(1, 0, 0);
  Matrix a(n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) a(i, j) = a(j, i) = random.Uniform() + (i == j ? 4 : 0);
  }
  Matrix vectors = a;
  const std::vector<double> values = Eigen(vectors);
  Matrix lower = a;
  ASSERT_TRUE(Cholesky(lower));
  const Matrix columns = InverseColumns(lower);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      double spectral = 0;
      double product = 0;
      double identity = 0;
      for (std::size_t k = 0; k < n; ++k) {
        spectral += vectors(i, k) * values[k] * vectors(j, k);
        product += lower(i, k) * lower(j, k);
        identity += lower(i, k) * columns(j, k);
      }
      EXPECT_THAT(spectral, DoubleNear(a(i, j), 1e-12));
      EXPECT_THAT(product, DoubleNear(a(i, j), 1e-12));
      EXPECT_THAT(identity, DoubleNear(i == j ? 1 : 0, 1e-12));
    }
  }
  Matrix indefinite(2);
  indefinite(0, 1) = indefinite(1, 0) = 1;
  EXPECT_FALSE(Cholesky(indefinite));
}

// Trials until `target` is reached, or `most`.
int TrialsTo(double target, const Objective& objective, std::size_t dims, std::uint64_t seed,
             int most) {
  std::vector<Parameter> parameters;
  for (std::size_t i = 0; i < dims; ++i)
    parameters.push_back(Uniform("x" + std::to_string(i), -5, 5));
  CmaSampler sampler(Space(parameters), {.seed = seed});
  for (int number = 0; number < most; ++number) {
    Observation trial = {.number = number, .point = sampler.Ask(number)};
    trial.loss = objective(trial.point);
    if (trial.loss <= target) return number + 1;
    trial.state = TrialState::kFinished;
    sampler.Tell(trial);
  }
  return most;
}

// The functions of BBOB without their rotations; the minimum, 0, is at 1.3 - 0.4 i.
struct Function {
  std::string name;
  std::function<double(std::vector<double>)> of_distance;
};

double Power(double base, std::size_t i, std::size_t d) {
  return std::pow(base, static_cast<double>(i) / static_cast<double>(d - 1));
}

std::vector<Function> Functions() {
  const auto sum = [](const std::function<double(std::size_t, double, std::size_t)>& term) {
    return [term](const std::vector<double>& z) {
      double total = 0;
      for (std::size_t i = 0; i < z.size(); ++i) total += term(i, z[i], z.size());
      return total;
    };
  };
  return {
      {"sphere", sum([](auto, double z, auto) { return z * z; })},
      {"ellipsoid", sum([](auto i, double z, auto d) { return Power(1e6, i, d) * z * z; })},
      {"discus", sum([](auto i, double z, auto) { return (i == 0 ? 1e6 : 1) * z * z; })},
      {"cigar", sum([](auto i, double z, auto) { return (i == 0 ? 1 : 1e6) * z * z; })},
      {"ridge",
       [](const std::vector<double>& z) {
         double rest = 0;
         for (std::size_t i = 1; i < z.size(); ++i) rest += z[i] * z[i];
         return z[0] * z[0] + 100 * std::sqrt(rest);
       }},
      {"powers",
       [](const std::vector<double>& z) {
         double total = 0;
         for (std::size_t i = 0; i < z.size(); ++i) {
           total += std::pow(std::abs(z[i]),
                             2 + 4 * static_cast<double>(i) / static_cast<double>(z.size() - 1));
         }
         return std::sqrt(total);
       }},
      {"rosenbrock",
       [](const std::vector<double>& z) {
         double total = 0;
         for (std::size_t i = 0; i + 1 < z.size(); ++i) {
           const double a = z[i] + 1;
           total += 100 * std::pow(a * a - z[i + 1] - 1, 2) + z[i] * z[i];
         }
         return total;
       }},
  };
}

TEST(CmaTest, SolvesTheUnimodalFunctionsOfBbobInFiveDimensions) {
  for (const Function& function : Functions()) {
    for (const std::uint64_t seed : {1, 2, 3}) {
      const auto objective = [&function](const std::vector<double>& x) {
        std::vector<double> z;
        for (std::size_t i = 0; i < x.size(); ++i) {
          z.push_back(x[i] - (1.3 - 0.4 * static_cast<double>(i)));
        }
        return function.of_distance(z);
      };
      EXPECT_LT(TrialsTo(1e-8, objective, 5, seed, 50000), 50000) << function.name << " " << seed;
    }
  }
}

TEST(CmaTest, APrunedTrialWhoseReportIsNoNumberIsTheWorst) {
  std::vector<std::vector<Point>> asked;
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Study study(Space({Uniform("x", -5, 5), Uniform("y", -5, 5)}),
                {.search_alg = "cmaes", .search = {.seed = 3}});
    std::vector<Point>& points = asked.emplace_back();
    for (int i = 0; i < 120; ++i) {
      const Trial trial = *study.Ask();
      points.push_back(trial.point);
      const double loss = trial.point[0] * trial.point[0] + trial.point[1];
      if (i % 2 == 0) {
        study.Tell(trial.number, loss);
        continue;
      }
      study.AddReport(trial.number, 1, i % 4 == 1 ? bad : loss);
      study.Prune(trial.number);
    }
  }
  EXPECT_EQ(asked[0], asked[1]);
}

TEST(CmaTest, FindsAMinimumAtTheEdge) {
  const auto slope = [](const std::vector<double>& x) {
    double total = 0;
    for (const double value : x) total += 5 - value;
    return total;
  };
  for (const std::uint64_t seed : {1, 2, 3})
    EXPECT_LT(TrialsTo(1e-8, slope, 5, seed, 50000), 50000);
}

TEST(CmaTest, IsNotHeldByAnEdgeOnTheWay) {
  // A discus with a direction of its own: 1e6 across it, with the minimum, 0, near a corner.
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Stream random(seed, 0, 0);
    std::vector<double> across;
    double length = 0;
    for (int i = 0; i < 5; ++i) {
      across.push_back(random.Uniform() - 0.5);
      length += across.back() * across.back();
    }
    const auto discus = [&](const std::vector<double>& x) {
      double along = 0;
      double total = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double z = x[i] - (i % 2 == 0 ? 3.5 : -3.5);
        along += z * across[i];
        total += z * z;
      }
      return total + 1e6 * along * along / length;
    };
    EXPECT_LT(TrialsTo(1e-8, discus, 5, seed, 5000), 5000) << seed;
  }
}

TEST(CmaTest, FindsACornerThatSomeCoordinatesHardlyFeel) {
  // The linear slope of BBOB: 1 to 10 for a step, up or down.
  const auto slope = [](const std::vector<double>& x) {
    double total = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      total += Power(10, i, x.size()) * (5 - (i % 2 == 0 ? x[i] : -x[i]));
    }
    return total;
  };
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    EXPECT_LT(TrialsTo(1e-8, slope, 5, seed, 5000), 5000) << seed;
  }
}

TEST(CmaTest, MarginsLetIntegersLeaveTheirCell) {
  // Without margins the integers freeze where they are when the floats have converged.
  const Space space({Uniform("x", -5, 5), Uniform("y", -5, 5), Integer("i", -20, 21),
                     LogInteger("j", 1, 65), Integer("binary", 0, 2)});
  int solved = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    CmaSampler sampler(space, {.seed = seed});
    double best = 1e9;
    for (int number = 0; number < 3000; ++number) {
      Observation trial = {.number = number, .point = sampler.Ask(number)};
      space.Check(trial.point);
      const Point& p = trial.point;
      trial.loss = 100 * (p[0] * p[0] + p[1] * p[1]) + std::pow(p[2] - 13, 2) +
                   std::pow(std::log2(p[3]) - 5, 2) + (p[4] == 1 ? 0 : 1);
      trial.state = TrialState::kFinished;
      sampler.Tell(trial);
      best = std::min(best, trial.loss);
    }
    solved += best < 1e-6;
  }
  EXPECT_GE(solved, 9);
}

TEST(CmaTest, LeavesALocalMinimumByRestarts) {
  const auto rastrigin = [](const std::vector<double>& x) {
    double total = 0;
    for (const double value : x) {
      const double z = value - 0.7;
      total += z * z - 10 * std::cos(2 * M_PI * z) + 10;
    }
    return total;
  };
  int solved = 0;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    solved += TrialsTo(1e-6, rastrigin, 3, seed, 20000) < 20000;
  }
  EXPECT_GE(solved, 5);
}

}  // namespace
}  // namespace orca::tune
