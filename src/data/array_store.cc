#include "orca/data/array_store.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "data/batch_loader.h"
#include "data/content.h"
#include "data/gather.h"
#include "data/shard_head.h"
#include "orca/core/error.h"
#include "orca/data/order.h"

namespace orca::data {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kMaxAhead = 4096;

void CheckRange(const char* what, int value, int least, int most) {
  if (value >= least && value <= most) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("{} is {}; give {} to {}", what, value, least, most));
}

class MemoryStore final : public ArrayStore {
 public:
  MemoryStore(std::vector<ColumnSpec> specs, std::shared_ptr<ShardHome> home)
      : specs_(std::move(specs)), home_(std::move(home)) {
    if (specs_.empty()) {
      throw Error(Code::kInvalidArgument,
                  "a store without columns holds nothing; give at least one");
    }
    const std::int64_t nothing = 0;
    std::vector<Column> empty;
    for (const ColumnSpec& spec : specs_) {
      const bool is_fixed = spec.kind == ColumnKind::kFixed;
      empty.push_back({{}, std::span(&nothing, is_fixed ? 0 : 1)});
    }
    LayOut(specs_, 0, empty);  // throws for columns that no shard can have
    content_ = std::make_shared<Content>(Content{specs_, {}, 0});
  }

  void Put(std::uint64_t rows, std::span<const Column> columns) override {
    Add(Shard::Put(home_, specs_, rows, columns));
  }

  void Add(std::shared_ptr<const Shard> shard) override {
    if (shard->specs() != specs_) {
      throw Error(Code::kInvalidArgument,
                  "the shard has other columns than the store; put it into another one");
    }
    const std::lock_guard lock(mutex_);
    if (shard->rows() > kMaxRows - content_->rows) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("{} rows and {} more are beyond the limit of {}; use another store",
                              content_->rows, shard->rows(), kMaxRows));
    }
    auto next = std::make_shared<Content>(*content_);
    auto stored = std::make_shared<StoredShard>();
    stored->first_row = next->rows;
    for (const Column& column : shard->columns()) stored->values.push_back(column.values.data());
    next->rows += shard->rows();
    stored->shard = std::move(shard);
    next->shards.push_back(std::move(stored));
    content_ = std::move(next);
  }

  const std::vector<ColumnSpec>& columns() const override { return specs_; }
  std::uint64_t rows() const override { return Now()->rows; }
  std::vector<std::shared_ptr<const Shard>> shards() const override {
    const auto content = Now();
    std::vector<std::shared_ptr<const Shard>> found;
    for (const auto& stored : content->shards) found.push_back(stored->shard);
    return found;
  }

  std::unique_ptr<BatchLoader> Batches(const BatchOptions& options) const override {
    CheckRange("ahead", options.ahead, 0, kMaxAhead);
    CheckRange("threads", options.threads, 1, kMaxThreads);
    Gatherer gatherer(Now(), options);
    // A thread takes longer to start than the only batch to gather.
    if (options.ahead == 0 || gatherer.order().steps() <= 1)
      return NewPlainLoader(std::move(gatherer));
    return NewAheadLoader(std::move(gatherer), options.ahead, options.threads);
  }

 private:
  std::shared_ptr<const Content> Now() const {
    const std::lock_guard lock(mutex_);
    return content_;
  }

  const std::vector<ColumnSpec> specs_;
  const std::shared_ptr<ShardHome> home_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Content> content_;  // guarded by mutex_
};

}  // namespace

std::unique_ptr<ArrayStore> ArrayStore::Create(std::vector<ColumnSpec> columns,
                                               std::shared_ptr<ShardHome> home) {
  if (!home) home = ShardShelf::Create();
  return std::make_unique<MemoryStore>(std::move(columns), std::move(home));
}

}  // namespace orca::data
