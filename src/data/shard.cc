#include "orca/data/shard.h"

#include <fmt/format.h>

#include <utility>

#include "data/shard_head.h"
#include "orca/core/error.h"

namespace orca::data {

std::span<const std::byte> Column::Bytes(std::uint64_t row) const {
  const auto begin = static_cast<std::uint64_t>(offsets[row]);
  const auto end = static_cast<std::uint64_t>(offsets[row + 1]);
  if (begin > end || end > values.size()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("row {} is said to lie at {} to {} of {} bytes; the shard is damaged",
                            row, begin, end, values.size()));
  }
  return values.subspan(begin, end - begin);
}

std::string_view Column::Text(std::uint64_t row) const {
  const auto bytes = Bytes(row);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::shared_ptr<const Shard> Shard::Put(const std::shared_ptr<ShardHome>& home,
                                        std::span<const ColumnSpec> specs, std::uint64_t rows,
                                        std::span<const Column> columns) {
  const ShardHead head = LayOut(specs, rows, columns);
  const std::vector<std::byte> first = EncodeHead(head);
  std::vector<FilePiece> pieces{{first, 0}};
  for (std::size_t c = 0; c < columns.size(); ++c) {
    pieces.push_back({columns[c].values, head.places[c].values.at});
    pieces.push_back({std::as_bytes(columns[c].offsets), head.places[c].offsets.at});
    pieces.push_back({columns[c].validity, head.places[c].validity.at});
  }
  const ShardMemory memory = home->New(head.size);
  auto hold = ShardHold::Adopt(home, memory.id);
  WriteMemoryFile(memory.fd.get(), pieces);
  return std::shared_ptr<const Shard>(new Shard(std::move(hold), memory));
}

std::shared_ptr<const Shard> Shard::Open(std::shared_ptr<const ShardHold> hold) {
  const ShardMemory memory = hold->home()->Open(hold->id());
  if (memory.size == 0 || CheckMemoryFile(memory.fd.get()) < memory.size)
    throw Error(Code::kPeerLost, fmt::format("the memory of shard {} is cut off", hold->id()));
  return std::shared_ptr<const Shard>(new Shard(std::move(hold), memory));
}

// The mapping keeps the memory; the descriptor is not needed any more.
Shard::Shard(std::shared_ptr<const ShardHold> hold, const ShardMemory& memory)
    : hold_(std::move(hold)),
      mapping_(memory.fd.get(), memory.size),
      in_file_(!IsInMemory(memory.fd.get())) {
  ShardHead head = DecodeHead({mapping_.data(), mapping_.size()});
  const auto at = [this](const ShardHead::Place& place) {
    return std::span<const std::byte>(mapping_.data() + place.at, place.bytes);
  };
  for (const ShardHead::ColumnPlaces& place : head.places) {
    const auto offsets = at(place.offsets);
    columns_.push_back({.values = at(place.values),
                        .offsets = {reinterpret_cast<const std::int64_t*>(offsets.data()),
                                    offsets.size() / sizeof(std::int64_t)},
                        .validity = at(place.validity)});
  }
  specs_ = std::move(head.specs);
  rows_ = head.rows;
  size_ = head.size;
}

}  // namespace orca::data
