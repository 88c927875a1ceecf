#include "orca/data/array_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>

#include "data/batch_loader.h"
#include "data/gather.h"
#include "data/shard.h"
#include "orca/core/error.h"
#include "orca/core/host.h"

namespace orca::data {
namespace {

constexpr std::size_t kAlign = 64;
// Half of what can be addressed, and a quarter of that: as float32 a row of bytes is four times as
// large.
constexpr std::size_t kMaxBytes = std::numeric_limits<std::size_t>::max() / 8;
constexpr int kMaxThreads = 256;
constexpr int kMaxAhead = 4096;

void CheckColumn(const ColumnSpec& spec) {
  std::size_t bytes = SizeOf(spec.dtype);
  for (const std::int64_t extent : spec.row_shape) {
    if (extent < 0) {
      throw Error(
          Code::kInvalidArgument,
          fmt::format("column '{}' has a dimension of {}; give 0 or more", spec.name, extent));
    }
    if (extent != 0 && bytes > kMaxBytes / static_cast<std::size_t>(extent)) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("a row of column '{}' has the shape ({}), which no memory holds; "
                              "give less than {}",
                              spec.name, fmt::join(spec.row_shape, ", "), HumanBytes(kMaxBytes)));
    }
    bytes *= static_cast<std::size_t>(std::max<std::int64_t>(extent, 1));
  }
}

std::size_t RoundUp(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

void CheckSize(const ColumnSpec& spec, std::uint64_t rows, std::size_t bytes) {
  const std::size_t row_bytes = spec.row_bytes();
  if (row_bytes != 0 && rows > kMaxBytes / row_bytes) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{} rows of column '{}' are more than the {} that memory can hold; "
                            "put fewer at a time",
                            rows, spec.name, HumanBytes(kMaxBytes)));
  }
  if (bytes == rows * row_bytes) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("column '{}' has {} bytes, but {} rows of {} bytes make {}; all columns "
                          "need the same number of rows",
                          spec.name, bytes, rows, row_bytes, rows * row_bytes));
}

std::shared_ptr<Shard> MakeShard(const std::vector<ColumnSpec>& specs, std::uint64_t rows,
                                 std::span<const std::span<const std::byte>> columns) {
  if (columns.size() != specs.size()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("got {} columns, the store has {}; put all of them together",
                            columns.size(), specs.size()));
  }
  std::size_t total = 0;
  std::vector<std::size_t> offsets;
  for (std::size_t c = 0; c < specs.size(); ++c) {
    CheckSize(specs[c], rows, columns[c].size());
    offsets.push_back(total);
    total += RoundUp(columns[c].size());
  }
  CheckMemoryFor(total, fmt::format("a shard of {} rows", rows));
  auto shard = std::make_shared<Shard>();
  shard->rows = rows;
  shard->memory = SharedMemory::Create("orca-shard", std::max(total, kAlign));
  for (std::size_t c = 0; c < specs.size(); ++c) {
    std::byte* const target = shard->memory.data() + offsets[c];
    if (!columns[c].empty()) std::memcpy(target, columns[c].data(), columns[c].size());
    shard->columns.push_back(target);
  }
  return shard;
}

void CheckRange(const char* what, int value, int least, int most) {
  if (value >= least && value <= most) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("{} is {}; give {} to {}", what, value, least, most));
}

class MemoryStore final : public ArrayStore {
 public:
  explicit MemoryStore(std::vector<ColumnSpec> specs) {
    if (specs.empty()) {
      throw Error(Code::kInvalidArgument,
                  "a store without columns holds nothing; give at least one");
    }
    for (const ColumnSpec& spec : specs) CheckColumn(spec);
    specs_ = specs;
    content_ = std::make_shared<Content>(Content{std::move(specs), {}, 0});
  }

  void Put(std::uint64_t rows, std::span<const std::span<const std::byte>> columns) override {
    auto shard = MakeShard(specs_, rows, columns);
    const std::lock_guard lock(mutex_);
    if (rows > kMaxRows - content_->rows) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("{} rows and {} more are beyond the limit of {}; use another store",
                              content_->rows, rows, kMaxRows));
    }
    auto next = std::make_shared<Content>(*content_);
    shard->first_row = next->rows;
    next->rows += rows;
    next->shards.push_back(std::move(shard));
    content_ = std::move(next);
  }

  const std::vector<ColumnSpec>& columns() const override { return specs_; }
  std::uint64_t rows() const override { return Now()->rows; }
  std::size_t shards() const override { return Now()->shards.size(); }
  std::uint64_t rows_of(std::size_t shard) const override { return At(shard)->rows; }

  std::shared_ptr<const std::byte> View(std::size_t shard, std::size_t column) const override {
    auto found = At(shard);
    if (column >= specs_.size()) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("there is no column {}; the store has {}, and the first is 0", column,
                              specs_.size()));
    }
    const std::byte* const memory = found->columns[column];
    return {std::move(found), memory};
  }

  std::unique_ptr<BatchLoader> Batches(const BatchOptions& options) const override {
    CheckRange("ahead", options.ahead, 0, kMaxAhead);
    CheckRange("threads", options.threads, 1, kMaxThreads);
    Gatherer gatherer(Now(), options);
    if (options.ahead == 0) return NewPlainLoader(std::move(gatherer));
    return NewAheadLoader(std::move(gatherer), options.ahead, options.threads);
  }

 private:
  std::shared_ptr<const Content> Now() const {
    const std::lock_guard lock(mutex_);
    return content_;
  }

  std::shared_ptr<const Shard> At(std::size_t shard) const {
    const auto content = Now();
    if (shard < content->shards.size()) return content->shards[shard];
    throw Error(Code::kInvalidArgument,
                fmt::format("there is no shard {}; the store has {}, and the first is 0", shard,
                            content->shards.size()));
  }

  std::vector<ColumnSpec> specs_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Content> content_;  // guarded by mutex_
};

}  // namespace

std::size_t ColumnSpec::row_elements() const {
  std::size_t count = 1;
  for (const std::int64_t extent : row_shape) count *= static_cast<std::size_t>(extent);
  return count;
}

std::unique_ptr<ArrayStore> ArrayStore::Create(std::vector<ColumnSpec> columns) {
  return std::make_unique<MemoryStore>(std::move(columns));
}

}  // namespace orca::data
