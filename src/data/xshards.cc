#include "orca/data/xshards.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <numeric>
#include <thread>

#include "orca/core/error.h"
#include "orca/core/host.h"

namespace orca::data {
namespace {

void CheckShards(int num_shards) {
  if (num_shards >= 1) return;
  throw Error(Code::kInvalidArgument, fmt::format("num_shards is {}; give 1 or more", num_shards));
}

// Where part i of n begins: the first ones have one row more.
std::uint64_t Begin(std::uint64_t rows, std::uint64_t i, std::uint64_t n) {
  return rows / n * i + std::min(i, rows % n);
}

/// Some rows of a column; keeps what had to be made anew.
struct Slice {
  Slice(const ColumnSpec& spec, const Column& column, std::uint64_t begin, std::uint64_t end) {
    if (spec.kind == ColumnKind::kFixed) {
      values = column.values.subspan(begin * spec.row_bytes(), (end - begin) * spec.row_bytes());
    } else {
      const std::int64_t first = column.offsets[begin];
      for (std::uint64_t row = begin; row <= end; ++row)
        offsets.push_back(column.offsets[row] - first);
      values = column.values.subspan(static_cast<std::size_t>(first),
                                     static_cast<std::size_t>(offsets.back()));
    }
    if (column.validity.empty()) return;
    validity.resize((end - begin + 7) / 8);
    for (std::uint64_t row = begin; row < end; ++row)
      if (!column.IsMissing(row))
        validity[(row - begin) / 8] |= std::byte{1} << ((row - begin) % 8);
  }

  std::span<const std::byte> values;
  std::vector<std::int64_t> offsets;
  std::vector<std::byte> validity;
};

std::shared_ptr<const Shard> PutRows(const std::shared_ptr<ShardHome>& home, const Arrays& arrays,
                                     std::uint64_t begin, std::uint64_t end) {
  std::vector<Slice> slices;
  slices.reserve(arrays.columns().size());
  std::vector<Column> columns;
  for (std::size_t c = 0; c < arrays.columns().size(); ++c) {
    const Slice& slice = slices.emplace_back(arrays.specs()[c], arrays.columns()[c], begin, end);
    columns.push_back({slice.values, slice.offsets, slice.validity});
  }
  return Shard::Put(home, arrays.specs(), end - begin, columns);
}

// A shard keeps its own columns.
Arrays ArraysOf(const std::shared_ptr<const Shard>& shard) {
  Arrays arrays;
  for (std::size_t c = 0; c < shard->columns().size(); ++c)
    arrays.Add(shard->specs()[c], shard->rows(), shard->columns()[c], shard);
  return arrays;
}

XShards Read(io::FileTensor (*read)(const io::Path&, io::FileSystem&),
             const std::vector<NamedFile>& files, int num_shards, std::shared_ptr<ShardHome> home) {
  Arrays arrays;
  for (const NamedFile& file : files) {
    io::FileTensor found = read(file.path, io::RealFiles());
    found.tensor.spec.name = file.name;
    arrays.Add(found.tensor, found.owner);
  }
  return XShards::Partition(arrays, num_shards, std::move(home));
}

// Calls function(i) for i < count; throws what it threw for the lowest.
void ForEach(std::size_t count, int threads, const std::function<void(std::size_t)>& function) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::exception_ptr> errors(count);
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        function(i);
      } catch (...) {
        errors[i] = std::current_exception();
        next = count;
      }
    }
  };
  {
    const std::size_t wanted =
        threads > 0 ? static_cast<std::size_t>(threads) : AllowedCpus().count();
    std::vector<std::jthread> helpers;
    for (std::size_t i = 1; i < std::min(wanted, count); ++i)
      helpers.push_back(StartThread([&work](const std::stop_token&) { work(); }));
    work();
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace

// --- arrays

Arrays& Arrays::Add(const io::Tensor& tensor, std::shared_ptr<const void> owner) {
  const auto dtype = io::ToDType(tensor.spec.type);
  if (!dtype || tensor.spec.shape.empty()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("array '{}' is {}; shards hold float16 to float64, bfloat16, int8 to "
                            "int64, uint8 and bool, and at least one dimension",
                            tensor.spec.name, io::Describe(tensor.spec)));
  }
  ColumnSpec spec{.name = tensor.spec.name,
                  .dtype = *dtype,
                  .row_shape = {tensor.spec.shape.begin() + 1, tensor.spec.shape.end()}};
  auto rows = static_cast<std::uint64_t>(tensor.spec.shape[0]);
  const std::size_t row_bytes = std::max<std::size_t>(spec.row_bytes(), 1);
  if (tensor.spec.shape[0] < 0) rows = tensor.data.size() / row_bytes;
  if (tensor.data.size() != rows * spec.row_bytes()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("array '{}' has {} bytes, which are no whole number of rows of {}",
                            spec.name, tensor.data.size(), spec.row_bytes()));
  }
  return Add(std::move(spec), rows, {.values = tensor.data}, std::move(owner));
}

Arrays& Arrays::Add(ColumnSpec spec, std::uint64_t rows, const Column& column,
                    std::shared_ptr<const void> owner) {
  if (!specs_.empty() && rows != rows_) {
    throw Error(Code::kInvalidArgument,
                fmt::format("array '{}' has {} rows, '{}' has {}; give all the same number",
                            spec.name, rows, specs_[0].name, rows_));
  }
  const auto same = [&](const ColumnSpec& other) { return other.name == spec.name; };
  if (std::ranges::any_of(specs_, same)) {
    throw Error(Code::kInvalidArgument,
                fmt::format("two arrays have the name '{}'; rename one", spec.name));
  }
  rows_ = rows;
  specs_.push_back(std::move(spec));
  columns_.push_back(column);
  owners_.push_back(std::move(owner));
  return *this;
}

std::size_t ColumnNamed(const Shard& shard, std::string_view name) {
  std::vector<std::string> names;
  for (const ColumnSpec& spec : shard.specs()) {
    if (spec.name == name) return names.size();
    names.push_back(spec.name);
  }
  throw Error(Code::kInvalidArgument, fmt::format("there is no column '{}'; there is '{}'", name,
                                                  fmt::join(names, "', '")));
}

std::span<const std::byte> internal::BytesOf(const Shard& shard, std::string_view name,
                                             io::TensorType type) {
  const std::size_t c = ColumnNamed(shard, name);
  const ColumnSpec& spec = shard.specs()[c];
  if (spec.kind == ColumnKind::kFixed && io::ToTensorType(spec.dtype) == type)
    return shard.columns()[c].values;
  throw Error(
      Code::kInvalidArgument,
      fmt::format("column '{}' is {}, not {}", name,
                  spec.kind == ColumnKind::kFixed ? Name(spec.dtype) : "text", io::Name(type)));
}

// --- making them

XShards::XShards(List shards, std::shared_ptr<ShardHome> home)
    : shards_(std::move(shards)), home_(home ? std::move(home) : ShardShelf::Create()) {}

XShards XShards::Partition(const Arrays& arrays, int num_shards, std::shared_ptr<ShardHome> home) {
  CheckShards(num_shards);
  XShards made({}, std::move(home));
  const auto count = static_cast<std::uint64_t>(num_shards);
  for (std::uint64_t i = 0; i < count; ++i) {
    made.shards_.push_back(PutRows(made.home_, arrays, Begin(arrays.rows(), i, count),
                                   Begin(arrays.rows(), i + 1, count)));
  }
  return made;
}

XShards XShards::ReadIdx(const std::vector<NamedFile>& files, int num_shards,
                         std::shared_ptr<ShardHome> home) {
  return Read(&io::ReadIdx, files, num_shards, std::move(home));
}

XShards XShards::ReadNpy(const std::vector<NamedFile>& files, int num_shards,
                         std::shared_ptr<ShardHome> home) {
  return Read(&io::ReadNpy, files, num_shards, std::move(home));
}

// --- working with them

std::uint64_t XShards::rows() const {
  return std::accumulate(shards_.begin(), shards_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const auto& shard) { return sum + shard->rows(); });
}

XShards XShards::Transform(const std::function<Arrays(const Shard&)>& function, int threads) const {
  XShards made(List(shards_.size()), home_);
  ForEach(shards_.size(), threads, [&](std::size_t i) {
    try {
      const Arrays arrays = function(*shards_[i]);
      made.shards_[i] = PutRows(home_, arrays, 0, arrays.rows());
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("shard {}: {}", i, error.what()));
    } catch (const std::exception& error) {
      throw Error(Code::kFailedPrecondition,
                  fmt::format("shard {}: the function threw: {}", i, error.what()));
    }
  });
  return made;
}

XShards XShards::Zip(const XShards& other) const {
  if (shards_.size() != other.shards_.size()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{} shards cannot be zipped with {}; repartition one of them",
                            shards_.size(), other.shards_.size()));
  }
  XShards made({}, home_);
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    Arrays both = ArraysOf(shards_[i]);
    const std::shared_ptr<const Shard>& theirs = other.shards_[i];
    if (theirs->rows() != both.rows()) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("shard {} has {} rows here and {} there; repartition both alike", i,
                              both.rows(), theirs->rows()));
    }
    for (std::size_t c = 0; c < theirs->columns().size(); ++c)
      both.Add(theirs->specs()[c], theirs->rows(), theirs->columns()[c]);
    made.shards_.push_back(PutRows(home_, both, 0, both.rows()));
  }
  return made;
}

std::vector<XShards> XShards::Split(const std::vector<std::vector<std::string>>& names) const {
  std::vector<XShards> parts;
  for (const std::vector<std::string>& wanted : names) {
    XShards& part = parts.emplace_back(List(), home_);
    for (const auto& shard : shards_) {
      Arrays arrays;
      for (const std::string& name : wanted) {
        const std::size_t c = ColumnNamed(*shard, name);
        arrays.Add(shard->specs()[c], shard->rows(), shard->columns()[c]);
      }
      part.shards_.push_back(PutRows(home_, arrays, 0, arrays.rows()));
    }
  }
  return parts;
}

XShards XShards::Repartition(int num_shards) const {
  CheckShards(num_shards);
  const auto store = Store();
  const auto count = static_cast<std::uint64_t>(num_shards);
  XShards made({}, home_);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t begin = Begin(store->rows(), i, count);
    const std::uint64_t end = Begin(store->rows(), i + 1, count);
    if (begin == end) {
      made.shards_.push_back(PutRows(home_, ArraysOf(shards_[0]), 0, 0));
      continue;
    }
    // A batch of consecutive rows, over the borders of shards.
    const auto batch =
        store->Batches({.batch_size = end - begin, .shuffle = false, .start = begin, .ahead = 0})
            ->Next();
    made.shards_.push_back(Shard::Put(home_, store->columns(), batch->rows, batch->columns));
  }
  return made;
}

std::shared_ptr<const Shard> XShards::Collect() const { return Repartition(1).shards_[0]; }

std::unique_ptr<ArrayStore> XShards::Store() const {
  if (shards_.empty()) {
    throw Error(Code::kInvalidArgument, "there is no shard, so nobody knows the columns");
  }
  auto store = ArrayStore::Create(shards_[0]->specs(), home_);
  for (const auto& shard : shards_) store->Add(shard);
  return store;
}

std::unique_ptr<BatchLoader> XShards::Batches(const BatchOptions& options) const {
  return Store()->Batches(options);
}

}  // namespace orca::data
