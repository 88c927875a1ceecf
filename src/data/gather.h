// Rows from anywhere, one behind the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "data/buffer_pool.h"
#include "data/content.h"
#include "data/convert.h"
#include "orca/data/array_store.h"
#include "orca/data/order.h"

namespace orca::data {

/// Makes the batches of one rank in one epoch, in any order. Any number of threads may use it.
class Gatherer {
 public:
  /// Throws kInvalidArgument for options that do not fit the columns.
  Gatherer(std::shared_ptr<const Content> content, const BatchOptions& options);

  const EpochOrder& order() const { return order_; }
  std::shared_ptr<const Batch> Gather(std::uint64_t step) const;

 private:
  /// How a column is gathered.
  struct Plan {
    bool is_fixed = true;
    bool has_missing = false;  ///< In some shard.
    std::size_t row_elements = 0;
    std::size_t row_bytes = 0;        ///< In the shards.
    std::size_t batch_row_bytes = 0;  ///< In batches.
    ConvertFunction convert = nullptr;
    ToFloat32 conversion;
  };

  void AskForRows(const Buffer& buffer) const;
  void FindPlaces(std::uint64_t step, std::vector<Place>& places) const;
  std::span<const std::byte> GatherFixed(std::size_t c, Buffer& buffer) const;
  void CopyRows(std::size_t c, const Buffer& buffer, std::byte* target) const;

  std::shared_ptr<const Content> content_;
  EpochOrder order_;
  std::vector<Plan> plans_;
  bool has_files_ = false;
  std::shared_ptr<BufferPool> pool_;
};

}  // namespace orca::data
