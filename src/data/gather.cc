#include "data/gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "orca/core/error.h"

namespace orca::data {
namespace {

// How many rows ahead are asked for; fewer leave the memory waiting, more are thrown out again.
constexpr std::size_t kRowsAhead = 12;

// Asks for a row that will be read soon.
void Prefetch(const std::byte* row, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  // The hardware goes on by itself in long rows.
  constexpr std::size_t kMost = 32 * kLine;
  // Into the second level: what waits for the first keeps the stores of the batch waiting as well,
  // which takes a third longer.
  constexpr int kSecondLevel = 2;
  const std::size_t wanted = std::min(bytes, kMost);
  for (std::size_t at = 0; at < wanted; at += kLine) __builtin_prefetch(row + at, 0, kSecondLevel);
  __builtin_prefetch(row + wanted - 1, 0, kSecondLevel);
}

// Small rows of a size that the compiler knows; the processor overlaps the loads.
template <typename T>
void GatherSmall(const std::vector<Place>& places, std::size_t rows, std::size_t c,
                 std::byte* target) {
  for (std::size_t i = 0; i < rows; ++i) {
    std::memcpy(target + i * sizeof(T), places[i].values[c] + places[i].row * sizeof(T), sizeof(T));
  }
}

// Texts of any length, behind each other.
Column GatherTexts(std::size_t c, Buffer& buffer) {
  const std::size_t rows = buffer.batch.rows;
  auto* const offsets = reinterpret_cast<std::int64_t*>(
      buffer.memory[c].offsets.Grow((rows + 1) * sizeof(std::int64_t)));
  std::size_t total = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    offsets[i] = static_cast<std::int64_t>(total);
    const Place& place = buffer.places[i];
    total += place.columns[c].Bytes(place.row).size();
  }
  offsets[rows] = static_cast<std::int64_t>(total);
  std::byte* const values = buffer.memory[c].values.Grow(total);
  for (std::size_t i = 0; i < rows; ++i) {
    const Place& place = buffer.places[i];
    std::ranges::copy(place.columns[c].Bytes(place.row), values + offsets[i]);
  }
  return {.values = {values, total}, .offsets = {offsets, rows + 1}};
}

std::span<const std::byte> GatherValidity(std::size_t c, Buffer& buffer) {
  const std::size_t rows = buffer.batch.rows;
  const std::size_t bytes = (rows + 7) / 8;
  std::byte* const bits = buffer.memory[c].validity.Grow(bytes);
  std::fill_n(bits, bytes, std::byte{0});
  for (std::size_t i = 0; i < rows; ++i) {
    const Place& place = buffer.places[i];
    if (!place.columns[c].IsMissing(place.row)) bits[i / 8] |= std::byte{1} << (i % 8);
  }
  return {bits, bytes};
}

OrderOptions OrderOf(std::uint64_t rows, const BatchOptions& options) {
  return {.rows = rows,
          .batch_size = options.batch_size,
          .shuffle = options.shuffle,
          .seed = options.seed,
          .epoch = options.epoch,
          .rank = options.rank,
          .world_size = options.world_size,
          .ranks = options.ranks,
          .least_rows = options.least_rows,
          .start = options.start,
          .block_rows = options.block_rows,
          .window_blocks = options.window_blocks};
}

}  // namespace

Gatherer::Gatherer(std::shared_ptr<const Content> content, const BatchOptions& options)
    : content_(std::move(content)), order_(OrderOf(content_->rows, options)) {
  const std::vector<ColumnSpec>& specs = content_->specs;
  if (!options.conversions.empty() && options.conversions.size() != specs.size()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("got {} conversions for {} columns; give one for each, or none at all",
                            options.conversions.size(), specs.size()));
  }
  for (std::size_t c = 0; c < specs.size(); ++c) {
    Plan column{.is_fixed = specs[c].kind == ColumnKind::kFixed,
                .row_elements = specs[c].row_elements(),
                .row_bytes = specs[c].row_bytes(),
                .batch_row_bytes = specs[c].row_bytes()};
    column.has_missing = std::ranges::any_of(content_->shards, [c](const auto& stored) {
      return !stored->shard->columns()[c].validity.empty();
    });
    if (!options.conversions.empty() && options.conversions[c]) {
      column.conversion = *options.conversions[c];
      column.convert = column.is_fixed ? FindConversion(specs[c].dtype) : nullptr;
      column.batch_row_bytes = column.row_elements * sizeof(float);
      if (column.convert == nullptr) {
        throw Error(Code::kInvalidArgument,
                    fmt::format("column '{}' is {}, which is not converted to float32; uint8 and "
                                "float64 are",
                                specs[c].name, column.is_fixed ? Name(specs[c].dtype) : "text"));
      }
    }
    plans_.push_back(column);
  }
  has_files_ = std::ranges::any_of(content_->shards,
                                   [](const auto& stored) { return stored->shard->in_file(); });
  // What is under way, what waits, what the user works on, and what he has just let go of.
  pool_ = std::make_shared<BufferPool>(static_cast<std::size_t>(options.ahead) +
                                       static_cast<std::size_t>(options.threads) + 2);
}

std::shared_ptr<const Batch> Gatherer::Gather(std::uint64_t step) const {
  auto buffer = pool_->Take();
  const auto [begin, end] = order_.Positions(step);
  buffer->batch.rows = end - begin;
  buffer->batch.cursor = order_.Cursor(step + 1);
  FindPlaces(step, buffer->places);
  if (has_files_) AskForRows(*buffer);
  buffer->memory.resize(plans_.size());
  buffer->batch.columns.clear();
  for (std::size_t c = 0; c < plans_.size(); ++c) {
    Column gathered =
        plans_[c].is_fixed ? Column{GatherFixed(c, *buffer)} : GatherTexts(c, *buffer);
    if (plans_[c].has_missing) gathered.validity = GatherValidity(c, *buffer);
    buffer->batch.columns.push_back(gathered);
  }
  return pool_->HandOut(std::move(buffer));
}

// All rows at once: a disk is much faster at many than at one after the other.
void Gatherer::AskForRows(const Buffer& buffer) const {
  for (std::size_t c = 0; c < plans_.size(); ++c) {
    const std::size_t bytes = plans_[c].row_bytes;
    if (!plans_[c].is_fixed || bytes == 0) continue;
    for (std::size_t i = 0; i < buffer.batch.rows; ++i) {
      const Place& place = buffer.places[i];
      if (place.in_file) AskForPages(place.values[c] + place.row * bytes, bytes);
    }
  }
}

// The rows of the step, and behind them the first ones of the next step: those are on their way
// into the caches while the user works on this batch.
void Gatherer::FindPlaces(std::uint64_t step, std::vector<Place>& places) const {
  places.clear();
  const auto add = [&](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t position = begin; position < end; ++position) {
      const std::uint64_t row = order_.Row(position);
      const StoredShard& stored = content_->ShardOf(row);
      places.push_back({stored.values.data(), row - stored.first_row,
                        stored.shard->columns().data(), stored.shard->in_file()});
    }
  };
  const auto now = order_.Positions(step);
  add(now.begin, now.end);
  const auto next = order_.Positions(step + 1);
  add(next.begin, std::min(next.end, next.begin + kRowsAhead));
}

std::span<const std::byte> Gatherer::GatherFixed(std::size_t c, Buffer& buffer) const {
  const std::size_t bytes = buffer.batch.rows * plans_[c].batch_row_bytes;
  std::byte* const target = buffer.memory[c].values.Grow(bytes);
  if (bytes != 0) CopyRows(c, buffer, target);
  return {target, bytes};
}

void Gatherer::CopyRows(std::size_t c, const Buffer& buffer, std::byte* target) const {
  const Plan& column = plans_[c];
  const std::vector<Place>& places = buffer.places;
  const std::size_t rows = buffer.batch.rows;
  if (column.convert == nullptr) {
    switch (column.row_bytes) {
      case 1:
        return GatherSmall<std::uint8_t>(places, rows, c, target);
      case 2:
        return GatherSmall<std::uint16_t>(places, rows, c, target);
      case 4:
        return GatherSmall<std::uint32_t>(places, rows, c, target);
      case 8:
        return GatherSmall<std::uint64_t>(places, rows, c, target);
      default:
        break;
    }
  }
  const auto source = [&](std::size_t i) {
    return places[i].values[c] + places[i].row * column.row_bytes;
  };
  for (std::size_t i = 0; i < rows; ++i) {
    if (i + kRowsAhead < places.size()) Prefetch(source(i + kRowsAhead), column.row_bytes);
    std::byte* const row = target + i * column.batch_row_bytes;
    if (column.convert != nullptr) {
      column.convert(source(i), reinterpret_cast<float*>(row), column.row_elements,
                     column.conversion.scale, column.conversion.shift);
    } else {
      std::memcpy(row, source(i), column.row_bytes);
    }
  }
}

}  // namespace orca::data
