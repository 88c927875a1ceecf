#include "orca/runtime/transform.h"

#include <fmt/format.h>

#include <algorithm>

#include "orca/core/error.h"

namespace orca {
namespace {

using List = data::XShards::List;
using Function = data::Arrays (*)(const data::Shard&);

// The shards of this rank: every WorldSize()-th.
List TransformMine(const List& shards, Function function) {
  List made;
  for (auto i = static_cast<std::size_t>(Rank()); i < shards.size();
       i += static_cast<std::size_t>(WorldSize())) {
    try {
      made.push_back(data::XShards::Partition(function(*shards[i]), 1, Shards()).shards()[0]);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("shard {}: {}", i, error.what()));
    } catch (const std::exception& error) {
      throw Error(Code::kFailedPrecondition,
                  fmt::format("shard {}: the function threw: {}", i, error.what()));
    }
  }
  return made;
}

}  // namespace

data::XShards Transform(Context& context, const data::XShards& shards, Function function,
                        RunOptions options) {
  if (shards.shards().empty()) return data::XShards({}, context.shards());
  const auto count = static_cast<int>(std::min<std::size_t>(shards.shards().size(), 1 << 20));
  if (options.workers == 0) options.workers = std::min(context.cores(), count);
  const auto by_rank = Run(context, options, &TransformMine, shards.shards(), function);
  List made(shards.shards().size());
  for (std::size_t i = 0; i < made.size(); ++i) {
    // Workers that were lost may have left fewer than were asked for.
    made[i] = by_rank[i % by_rank.size()][i / by_rank.size()];
  }
  return data::XShards(std::move(made), context.shards());
}

}  // namespace orca
