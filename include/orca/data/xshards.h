// Shards of named arrays: made, transformed, joined and divided.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "orca/core/dtype.h"
#include "orca/core/export.h"
#include "orca/data/array_store.h"
#include "orca/data/shard.h"
#include "orca/io/array_file.h"
#include "orca/io/tensor.h"

namespace orca::data {

/// Arrays with one number of rows, by name: what becomes a shard. One thread at a time may use it.
class ORCA_API Arrays {
 public:
  /// Rows behind each other, each of `row_shape`. Throws kInvalidArgument when the number of rows
  /// is another than that of the first array.
  template <typename T>
  Arrays& Add(std::string name, std::vector<T> values, std::vector<std::int64_t> row_shape = {}) {
    static_assert(!std::is_same_v<T, bool>, "bools have no memory of their own; give std::uint8_t");
    const auto owner = std::make_shared<const std::vector<T>>(std::move(values));
    row_shape.insert(row_shape.begin(), -1);
    const io::TensorSpec spec{std::move(name), *io::internal::TypeOf<T>(), std::move(row_shape)};
    return Add({spec, std::as_bytes(std::span(*owner))}, owner);
  }
  /// The first dimension counts the rows; -1: as many as there are. Without an owner, the caller
  /// keeps the memory.
  Arrays& Add(const io::Tensor& tensor, std::shared_ptr<const void> owner = nullptr);
  /// A column of any kind.
  Arrays& Add(ColumnSpec spec, std::uint64_t rows, const Column& column,
              std::shared_ptr<const void> owner = nullptr);

  std::uint64_t rows() const { return rows_; }
  const std::vector<ColumnSpec>& specs() const { return specs_; }
  const std::vector<Column>& columns() const { return columns_; }

 private:
  std::uint64_t rows_ = 0;
  std::vector<ColumnSpec> specs_;
  std::vector<Column> columns_;
  std::vector<std::shared_ptr<const void>> owners_;
};

/// The column of a shard with that name. Throws kInvalidArgument, with the names that there are.
ORCA_API std::size_t ColumnNamed(const Shard& shard, std::string_view name);

namespace internal {

/// Throws kInvalidArgument unless the column holds rows of that type.
ORCA_API std::span<const std::byte> BytesOf(const Shard& shard, std::string_view name,
                                            io::TensorType type);

}  // namespace internal

/// The elements of a column of fixed rows, without a copy.
template <typename T>
std::span<const T> ViewAs(const Shard& shard, std::string_view name) {
  const auto bytes = internal::BytesOf(shard, name, *io::internal::TypeOf<T>());
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

/// A file, and the name of its array.
struct NamedFile {
  std::string name;
  io::Path path;
};

/// A list of shards. A value: operations leave it as it is, and copies share the shards. Any thread
/// may use it.
class ORCA_API XShards {
 public:
  using List = std::vector<std::shared_ptr<const Shard>>;

  /// New shards that are made of these live in `home`, by default in this process; in a driver give
  /// `context->shards()`, so that its workers can open them.
  explicit XShards(List shards, std::shared_ptr<ShardHome> home = nullptr);
  /// Divides arrays into shards of consecutive rows: the first ones have one row more, and some
  /// have none when there are fewer rows than shards.
  static XShards Partition(const Arrays& arrays, int num_shards,
                           std::shared_ptr<ShardHome> home = nullptr);
  /// Arrays of files, one a column. Throws kUnavailable, naming the file, for a damaged one.
  static XShards ReadIdx(const std::vector<NamedFile>& files, int num_shards,
                         std::shared_ptr<ShardHome> home = nullptr);
  static XShards ReadNpy(const std::vector<NamedFile>& files, int num_shards,
                         std::shared_ptr<ShardHome> home = nullptr);

  const List& shards() const { return shards_; }
  const std::shared_ptr<ShardHome>& home() const { return home_; }
  std::uint64_t rows() const;

  /// What `function` makes of each shard, on so many threads of this process (0: one a core); see
  /// also orca::Transform. Throws what it threw for the first shard, with its number.
  XShards Transform(const std::function<Arrays(const Shard&)>& function, int threads = 0) const;
  /// The columns of both. Throws kInvalidArgument unless the shards have the same rows and no name
  /// is in both.
  XShards Zip(const XShards& other) const;
  /// One XShards of the columns of each list of names.
  std::vector<XShards> Split(const std::vector<std::vector<std::string>>& names) const;
  /// The same rows in another number of shards, divided as Partition does.
  XShards Repartition(int num_shards) const;
  /// All rows in one shard.
  std::shared_ptr<const Shard> Collect() const;

  /// All shards as one table, without a copy. Throws kInvalidArgument when their columns differ, or
  /// there is no shard.
  std::unique_ptr<ArrayStore> Store() const;
  std::unique_ptr<BatchLoader> Batches(const BatchOptions& options) const;

 private:
  List shards_;
  std::shared_ptr<ShardHome> home_;
};

}  // namespace orca::data
