// One function for each scheduler; MakeScheduler calls them by name.
#pragma once

#include <memory>

#include "orca/tune/scheduler.h"
#include "tune/schedulers/base.h"
#include "tune/schedulers/parameters.h"

namespace orca::tune {

using MadeScheduler = std::unique_ptr<SchedulerBase>;

MadeScheduler MakeFifo(Parameters& parameters, const SchedulerOptions& options);
MadeScheduler MakeAsha(Parameters& parameters, const SchedulerOptions& options);
MadeScheduler MakeHyperBand(Parameters& parameters, const SchedulerOptions& options);
/// HyperBand, the bracket with the most trials first.
MadeScheduler MakeBohbHyperBand(Parameters& parameters, const SchedulerOptions& options);
MadeScheduler MakeMedianStopping(Parameters& parameters, const SchedulerOptions& options);
MadeScheduler MakePbt(Parameters& parameters, const SchedulerOptions& options);
/// PBT with the bounds that PB2 is given.
MadeScheduler MakePb2(Parameters& parameters, const SchedulerOptions& options);
MadeScheduler MakePbtReplay(Parameters& parameters, const SchedulerOptions& options);

}  // namespace orca::tune
