#include "orca/learn/trigger.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "orca/core/error.h"

namespace orca::learn {
namespace {

/// A trigger that remembers nothing.
class Condition final : public Trigger {
 public:
  explicit Condition(std::function<bool(const TrainProgress&)> holds) : holds_(std::move(holds)) {}
  bool Fires(const TrainProgress& progress) override { return holds_(progress); }

 private:
  std::function<bool(const TrainProgress&)> holds_;
};

class EpochWatch final : public Trigger {
 public:
  bool Fires(const TrainProgress& progress) override {
    // A smaller number is another training, which begins anew.
    const bool grown = last_ && progress.epoch > *last_;
    last_ = progress.epoch;
    return grown;
  }

 private:
  std::optional<std::int64_t> last_;
};

class Combination final : public Trigger {
 public:
  Combination(std::vector<std::shared_ptr<Trigger>> triggers, bool all)
      : triggers_(std::move(triggers)), all_(all) {}

  bool Fires(const TrainProgress& progress) override {
    std::size_t fired = 0;
    for (const auto& trigger : triggers_) fired += trigger->Fires(progress) ? 1 : 0;
    return all_ ? fired == triggers_.size() : fired > 0;
  }

 private:
  std::vector<std::shared_ptr<Trigger>> triggers_;
  bool all_;
};

std::shared_ptr<Trigger> When(std::function<bool(const TrainProgress&)> holds) {
  return std::make_shared<Condition>(std::move(holds));
}

void CheckCount(std::string_view trigger, std::int64_t count) {
  if (count > 0) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("{}({}) is not positive; give 1 or more", trigger, count));
}

void CheckLimit(std::string_view trigger, double limit) {
  if (!std::isnan(limit)) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("{}(nan) can never fire; give the limit as a number", trigger));
}

std::shared_ptr<Trigger> Combine(std::string_view name,
                                 std::vector<std::shared_ptr<Trigger>> triggers, bool all) {
  if (triggers.empty()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{}() of no triggers means nothing; give one or more", name));
  }
  for (const auto& trigger : triggers) {
    if (trigger != nullptr) continue;
    throw Error(Code::kInvalidArgument, fmt::format("{} was given a null trigger", name));
  }
  return std::make_shared<Combination>(std::move(triggers), all);
}

}  // namespace

std::shared_ptr<Trigger> MaxEpoch(std::int64_t epochs) {
  CheckCount("MaxEpoch", epochs);
  return When([epochs](const TrainProgress& now) { return now.epoch > epochs; });
}

std::shared_ptr<Trigger> MaxIteration(std::int64_t iterations) {
  CheckCount("MaxIteration", iterations);
  return When([iterations](const TrainProgress& now) { return now.iteration > iterations; });
}

std::shared_ptr<Trigger> EveryEpoch() { return std::make_shared<EpochWatch>(); }

std::shared_ptr<Trigger> SeveralIteration(std::int64_t interval) {
  CheckCount("SeveralIteration", interval);
  return When([interval](const TrainProgress& now) {
    return now.iteration != 0 && now.iteration % interval == 0;
  });
}

std::shared_ptr<Trigger> MaxScore(double score) {
  CheckLimit("MaxScore", score);
  return When([score](const TrainProgress& now) { return now.score > score; });
}

std::shared_ptr<Trigger> MinLoss(double loss) {
  CheckLimit("MinLoss", loss);
  return When([loss](const TrainProgress& now) { return now.loss < loss; });
}

std::shared_ptr<Trigger> And(std::vector<std::shared_ptr<Trigger>> triggers) {
  return Combine("And", std::move(triggers), true);
}

std::shared_ptr<Trigger> Or(std::vector<std::shared_ptr<Trigger>> triggers) {
  return Combine("Or", std::move(triggers), false);
}

}  // namespace orca::learn
