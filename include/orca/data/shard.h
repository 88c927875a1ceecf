// Columns of rows in one piece of shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "orca/core/dtype.h"
#include "orca/core/export.h"
#include "orca/core/memory_file.h"
#include "orca/data/shard_home.h"

namespace orca::data {

enum class ColumnKind : std::uint8_t {
  kFixed = 0,   ///< Every row has the same type and shape.
  kString = 1,  ///< UTF-8 of any length.
  kBytes = 2,   ///< Bytes of any length.
};

/// What a column holds.
struct ColumnSpec {
  std::string name;  ///< For messages and for Arrow.
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> row_shape = {};  ///< Without the row dimension; empty for one element.
  ColumnKind kind = ColumnKind::kFixed;      ///< Without it, `dtype` and `row_shape` say nothing.

  ORCA_API std::size_t row_elements() const;
  /// Of a fixed column.
  std::size_t row_bytes() const { return row_elements() * SizeOf(dtype); }
  bool operator==(const ColumnSpec&) const = default;
};

/// The memory of a column: of a shard's, of a batch's, or of what will be copied into one.
struct ORCA_API Column {
  std::span<const std::byte> values;  ///< The rows behind each other.
  /// Strings and bytes: where row i begins and ends in `values` is at i and i + 1.
  std::span<const std::int64_t> offsets = {};
  /// A bit a row, the lowest of a byte first; 0: the value is missing. Empty: none is.
  std::span<const std::byte> validity = {};

  bool IsMissing(std::uint64_t row) const {
    if (validity.empty()) return false;
    return ((std::to_integer<unsigned>(validity[row / 8]) >> (row % 8)) & 1U) == 0;
  }
  /// A row of strings or bytes. Throws kInvalidArgument when its offsets lie outside of the values.
  std::span<const std::byte> Bytes(std::uint64_t row) const;
  std::string_view Text(std::uint64_t row) const;
};

/// Rows of some columns in one sealed piece of memory, each column 64-byte aligned.
///
/// Never changes once it is there. Other processes open the same memory by its number, for reading
/// only: one copy a machine. Any thread may use it; its home gets the memory back when the last
/// pointer goes.
class ORCA_API Shard : public std::enable_shared_from_this<Shard> {
 public:
  /// Copies `columns` into new memory. Throws kInvalidArgument when sizes do not fit each other.
  static std::shared_ptr<const Shard> Put(const std::shared_ptr<ShardHome>& home,
                                          std::span<const ColumnSpec> specs, std::uint64_t rows,
                                          std::span<const Column> columns);
  /// A shard that was put elsewhere. Throws kPeerLost when the memory holds none.
  static std::shared_ptr<const Shard> Open(std::shared_ptr<const ShardHold> hold);

  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  const std::shared_ptr<const ShardHold>& hold() const { return hold_; }
  std::uint64_t rows() const { return rows_; }
  const std::vector<ColumnSpec>& specs() const { return specs_; }
  const std::vector<Column>& columns() const { return columns_; }
  /// All bytes that it takes.
  std::size_t size() const { return size_; }
  /// Whether they lie in a file of a disk.
  bool in_file() const { return in_file_; }

 private:
  Shard(std::shared_ptr<const ShardHold> hold, const ShardMemory& memory);

  std::shared_ptr<const ShardHold> hold_;
  PrivateMapping mapping_;
  std::vector<ColumnSpec> specs_;
  std::uint64_t rows_ = 0;
  std::size_t size_ = 0;
  bool in_file_ = false;
  std::vector<Column> columns_;
};

}  // namespace orca::data
