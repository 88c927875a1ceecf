// A function of each shard, on workers.
#pragma once

#include "orca/core/export.h"
#include "orca/data/xshards.h"
#include "orca/runtime/program.h"

namespace orca {

/// What `function` makes of each shard, on the workers of `context` (by default one a core, and no
/// more than shards): the shards stay in the context's memory, numbers of them travel. `function`
/// is plain, as those of Run; the shards must be in `context.shards()`. Throws RunError, whose text
/// names the shard, when it throws.
ORCA_API data::XShards Transform(Context& context, const data::XShards& shards,
                                 data::Arrays (*function)(const data::Shard&),
                                 RunOptions options = {});

}  // namespace orca
