// What the workers of an Estimator run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nn/training_state.h"
#include "orca/nn/estimator.h"

namespace orca::nn {

using SharedShard = std::shared_ptr<const data::Shard>;

/// Joins what the workers have seen of some rows; see EvaluateTask.
Scores JoinScores(const std::vector<Json>& parts, const std::vector<std::string>& metrics,
                  bool sums_loss);

/// What the workers run. Every function returns a bundle. `call` is a Json value as MessagePack,
/// `state` a TrainingState.
SharedShard FitTask(decltype(EstimatorOptions::model) model,
                    decltype(EstimatorOptions::optimizer) optimizer,
                    decltype(EstimatorOptions::loss) loss,
                    decltype(EstimatorOptions::schedule) schedule,
                    decltype(FitOptions::checkpoint_trigger) trigger,
                    std::vector<std::uint8_t> call, SharedShard state,
                    std::vector<SharedShard> rows, std::vector<SharedShard> validation);

SharedShard EvaluateTask(decltype(EstimatorOptions::model) model,
                         decltype(EstimatorOptions::loss) loss, std::vector<std::uint8_t> call,
                         SharedShard state, std::vector<SharedShard> rows);

SharedShard PredictTask(decltype(EstimatorOptions::model) model, std::vector<std::uint8_t> call,
                        SharedShard state, std::vector<SharedShard> rows);

}  // namespace orca::nn
