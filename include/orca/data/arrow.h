// Shards as Arrow record batches, and the other way round: the Arrow C data interface.
#pragma once

#include <cstdint>
#include <memory>

#include "orca/core/export.h"
#include "orca/data/shard.h"

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE
extern "C" {
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  std::int64_t flags;
  std::int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};
struct ArrowArray {
  std::int64_t length;
  std::int64_t null_count;
  std::int64_t offset;
  std::int64_t n_buffers;
  std::int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};
}
#endif

namespace orca::data {

/// Fills `schema` and `array` with a record batch over the shard's own memory, without a copy; only
/// booleans, which are bits in Arrow and bytes here, are packed into new memory. Rows of a shape
/// are Arrow's fixed_shape_tensor, bfloat16 is binary of two bytes. Whoever receives the two
/// releases them; the memory lives until then.
ORCA_API void ExportArrow(const std::shared_ptr<const Shard>& shard, ArrowSchema* schema,
                          ArrowArray* array);

/// Copies a record batch into a new shard; releases nothing. Takes numbers that the engine has,
/// booleans, strings, binary, and lists of a fixed size of numbers. Throws kInvalidArgument, naming
/// the column, for another type.
ORCA_API std::shared_ptr<const Shard> PutArrow(const std::shared_ptr<ShardHome>& home,
                                               const ArrowSchema& schema, const ArrowArray& array);

}  // namespace orca::data
