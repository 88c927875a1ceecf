// A search for the minimum of Rosenbrock's function in a mixed space, by asking and telling.
//
//   ./study [trials]
#include <orca/tune/study.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

namespace tune = orca::tune;

double Loss(const std::map<std::string, tune::Value>& config) {
  const double x = std::get<double>(config.at("x"));
  const double y = std::get<double>(config.at("y"));
  const double offset = std::get<std::string>(config.at("kind")) == "plain" ? 0 : 1;
  return std::pow(1 - x, 2) + 100 * std::pow(y - x * x, 2) + offset;
}

int main(int argc, char** argv) {
  const long trials = argc > 1 ? std::atol(argv[1]) : 60;
  const tune::Space space({
      tune::Uniform("x", -2, 2),
      tune::Uniform("y", -1, 3),
      tune::Choice("kind", {std::string("plain"), std::string("raised")}),
  });
  tune::Study study(space, {.mode = tune::Mode::kMin, .search = {.seed = 1}});
  while (study.size() < trials) {
    const std::optional<tune::Trial> trial = study.Ask();
    if (!trial) break;  // Every point of a finite space has been tried.
    study.Tell(trial->number, Loss(study.Config(*trial)));
  }
  const tune::Trial best = study.Best().value();
  std::printf("%ld trials with %s: trial %ld has the loss %.4f\n", static_cast<long>(study.size()),
              study.algorithm().c_str(), static_cast<long>(best.number), best.value);
  return 0;
}
