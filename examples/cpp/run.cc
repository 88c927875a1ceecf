// A C++ function on the workers of this machine: an estimate of pi, each worker with its own
// points.
#include <orca/orca.h>

#include <cstdio>
#include <random>

namespace {

double EstimatePi(long points) {
  std::mt19937_64 random(static_cast<unsigned>(orca::Rank()));
  std::uniform_real_distribution<double> side(-1.0, 1.0);
  double inside = 0;
  for (long i = 0; i < points; ++i) {
    const double x = side(random);
    const double y = side(random);
    inside += x * x + y * y < 1.0 ? 1.0 : 0.0;
  }
  orca::Group().AllReduce(orca::comm::AsBytes(std::span(&inside, 1)), orca::comm::DType::kFloat64);
  return 4.0 * inside / (static_cast<double>(points) * orca::WorldSize());
}

}  // namespace

int main(int argc, char** argv) {
  orca::Init(argc, argv);  // In a worker it does not return.
  const auto context = orca::Context::Start({});
  const auto results = orca::Run(*context, {.workers = 2}, EstimatePi, 1'000'000L);
  std::printf("rank 0 says %.3f, rank 1 says %.3f\n", results[0], results[1]);
  return 0;
}
