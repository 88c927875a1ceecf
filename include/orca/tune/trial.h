// What can become of a trial.
#pragma once

#include "orca/core/export.h"

namespace orca::tune {

/// The numbers are those of stored studies.
enum class TrialState {
  kRunning = 0,
  kPaused = 1,
  kFinished = 2,
  kPruned = 3,  ///< Stopped early by a scheduler.
  kFailed = 4,  ///< It raised, died, or its value is not a number.
};
/// "running", "paused", "finished", "pruned" or "failed".
ORCA_API const char* TrialStateName(TrialState state);

}  // namespace orca::tune
