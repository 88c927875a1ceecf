// How a shard lies in memory: magic, length of the head, the head (MessagePack), then the parts of
// the columns, each aligned.
#include "data/shard_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/nesting.h"
#include "orca/data/order.h"

namespace orca::data {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMagic = 0x314452414843524fULL;  // "ORCHARD1"
constexpr std::size_t kPrefix = 2 * sizeof(std::uint64_t);
constexpr std::size_t kAlign = 64;
// Half of what can be addressed, and a quarter of that: as float32 a row of bytes is four times as
// large.
constexpr std::size_t kMaxBytes = std::numeric_limits<std::size_t>::max() / 8;
constexpr std::size_t kMaxRowDimensions = 63;  // numpy has 64, and one is for the rows
constexpr std::size_t kMaxHead = std::size_t{64} << 20;

std::uint64_t Aligned(std::uint64_t at) { return (at + kAlign - 1) / kAlign * kAlign; }
std::uint64_t BitBytes(std::uint64_t rows) { return (rows + 7) / 8; }

// The bytes of a row, or nothing when no memory holds it.
std::optional<std::size_t> RowBytes(const ColumnSpec& spec) {
  if (spec.row_shape.size() > kMaxRowDimensions) return std::nullopt;
  std::size_t bytes = SizeOf(spec.dtype);
  for (const std::int64_t extent : spec.row_shape) {
    if (extent < 0) return std::nullopt;
    if (extent != 0 && bytes > kMaxBytes / static_cast<std::size_t>(extent)) return std::nullopt;
    bytes *= static_cast<std::size_t>(std::max<std::int64_t>(extent, 1));
  }
  return spec.row_bytes();
}

void CheckSpec(const ColumnSpec& spec) {
  for (const std::int64_t extent : spec.row_shape) {
    if (extent >= 0) continue;
    throw Error(
        Code::kInvalidArgument,
        fmt::format("column '{}' has a dimension of {}; give 0 or more", spec.name, extent));
  }
  if (spec.row_shape.size() > kMaxRowDimensions) {
    throw Error(Code::kInvalidArgument,
                fmt::format("a row of column '{}' has {} dimensions; give {} or fewer", spec.name,
                            spec.row_shape.size(), kMaxRowDimensions));
  }
  if (RowBytes(spec)) return;
  throw Error(
      Code::kInvalidArgument,
      fmt::format("a row of column '{}' has the shape ({}), which no memory holds; give less than "
                  "{}",
                  spec.name, fmt::join(spec.row_shape, ", "), HumanBytes(kMaxBytes)));
}

void CheckColumn(const ColumnSpec& spec, std::uint64_t rows, const Column& column) {
  const auto refuse = [&](std::size_t got, std::uint64_t wanted, const char* what) {
    throw Error(Code::kInvalidArgument,
                fmt::format("column '{}' has {} bytes of {}, but {} rows make {}; all columns need "
                            "the same number of rows",
                            spec.name, got, what, rows, wanted));
  };
  if (!column.validity.empty() && column.validity.size() != BitBytes(rows))
    refuse(column.validity.size(), BitBytes(rows), "validity bits");
  if (spec.kind == ColumnKind::kFixed) {
    const std::size_t row_bytes = spec.row_bytes();
    if (row_bytes != 0 && rows > kMaxBytes / row_bytes) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("{} rows of column '{}' are more than the {} that memory can hold; "
                              "put fewer at a time",
                              rows, spec.name, HumanBytes(kMaxBytes)));
    }
    if (column.values.size() != rows * row_bytes)
      refuse(column.values.size(), rows * row_bytes, "values");
    return;
  }
  if (column.offsets.size() != rows + 1)
    refuse(column.offsets.size_bytes(), (rows + 1) * sizeof(std::int64_t), "offsets");
  const bool in_order = std::ranges::is_sorted(column.offsets) && column.offsets.front() == 0 &&
                        static_cast<std::uint64_t>(column.offsets.back()) == column.values.size();
  if (!in_order) {
    throw Error(Code::kInvalidArgument,
                fmt::format("the offsets of column '{}' do not go from 0 up to its {} bytes",
                            spec.name, column.values.size()));
  }
}

[[noreturn]] void ThrowDamaged(const char* why) {
  throw Error(Code::kPeerLost, fmt::format("the memory holds no shard: {}", why));
}

Json ToJson(const ShardHead::Place& place) { return {place.at, place.bytes}; }

ShardHead::Place ReadPlace(const Json& json, std::uint64_t begin, std::uint64_t size) {
  const ShardHead::Place place{json.at(0).get<std::uint64_t>(), json.at(1).get<std::uint64_t>()};
  if (place.bytes == 0) return {};
  if (place.at % kAlign != 0 || place.at < begin || place.at > size ||
      place.bytes > size - place.at) {
    ThrowDamaged("a column lies outside of it");
  }
  return place;
}

ColumnSpec ReadSpec(const Json& json) {
  const auto dtype = json.at("dtype").get<std::uint64_t>();
  const auto kind = json.at("kind").get<std::uint64_t>();
  if (dtype >= kDTypeCount || kind > static_cast<std::uint64_t>(ColumnKind::kBytes))
    ThrowDamaged("a column has a type that this release does not know");
  ColumnSpec spec{.name = json.at("name").get<std::string>(),
                  .dtype = static_cast<DType>(dtype),
                  .row_shape = json.at("shape").get<std::vector<std::int64_t>>(),
                  .kind = static_cast<ColumnKind>(kind)};
  if (!RowBytes(spec)) ThrowDamaged("a column has an impossible shape");
  return spec;
}

void CheckPlaces(const ColumnSpec& spec, std::uint64_t rows, const ShardHead::ColumnPlaces& place) {
  const std::uint64_t row_bytes = spec.kind == ColumnKind::kFixed ? spec.row_bytes() : 0;
  const std::uint64_t widest = std::max<std::uint64_t>(row_bytes, sizeof(std::int64_t));
  if (rows >= kMaxBytes / widest) ThrowDamaged("it announces too many rows");
  if ((spec.kind == ColumnKind::kFixed && place.values.bytes != rows * row_bytes))
    ThrowDamaged("a column has a wrong size");
  if (spec.kind != ColumnKind::kFixed && place.offsets.bytes != (rows + 1) * sizeof(std::int64_t))
    ThrowDamaged("a column has a wrong number of offsets");
  if (place.validity.bytes != 0 && place.validity.bytes != BitBytes(rows))
    ThrowDamaged("a column has a wrong number of validity bits");
}

ShardHead ReadHead(const Json& json, std::uint64_t begin, std::uint64_t size) {
  ShardHead head;
  head.rows = json.at("rows").get<std::uint64_t>();
  if (head.rows > kMaxRows) ThrowDamaged("it announces too many rows");
  head.size = json.at("size").get<std::uint64_t>();
  if (head.size > size || head.size < begin) ThrowDamaged("it is cut off");
  for (const Json& column : json.at("columns")) {
    head.specs.push_back(ReadSpec(column));
    head.places.push_back({.values = ReadPlace(column.at("values"), begin, head.size),
                           .offsets = ReadPlace(column.at("offsets"), begin, head.size),
                           .validity = ReadPlace(column.at("validity"), begin, head.size)});
    CheckPlaces(head.specs.back(), head.rows, head.places.back());
  }
  return head;
}

Json Describe(const ShardHead& head) {
  Json columns = Json::array();
  for (std::size_t c = 0; c < head.specs.size(); ++c) {
    const ColumnSpec& spec = head.specs[c];
    columns.push_back({{"name", spec.name},
                       {"dtype", static_cast<int>(spec.dtype)},
                       {"kind", static_cast<int>(spec.kind)},
                       {"shape", spec.row_shape},
                       {"values", ToJson(head.places[c].values)},
                       {"offsets", ToJson(head.places[c].offsets)},
                       {"validity", ToJson(head.places[c].validity)}});
  }
  return {{"rows", head.rows}, {"size", head.size}, {"columns", std::move(columns)}};
}

}  // namespace

std::size_t ColumnSpec::row_elements() const {
  std::size_t count = 1;
  for (const std::int64_t extent : row_shape) count *= static_cast<std::size_t>(extent);
  return count;
}

ShardHead LayOut(std::span<const ColumnSpec> specs, std::uint64_t rows,
                 std::span<const Column> columns) {
  if (columns.size() != specs.size()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("got {} columns, the shard has {}; put all of them together",
                            columns.size(), specs.size()));
  }
  if (rows > kMaxRows) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{} rows are beyond the limit of {}", rows, kMaxRows));
  }
  ShardHead head{.specs = {specs.begin(), specs.end()}, .rows = rows, .places = {}, .size = 0};
  for (std::size_t c = 0; c < columns.size(); ++c) {
    CheckSpec(specs[c]);
    CheckColumn(specs[c], rows, columns[c]);
  }
  // Numbers take more bytes the larger they are: what comes first is as long as it can get.
  constexpr std::uint64_t kLongest = std::numeric_limits<std::uint64_t>::max();
  constexpr ShardHead::Place kAnywhere{kLongest, kLongest};
  head.places.assign(columns.size(), {kAnywhere, kAnywhere, kAnywhere});
  head.size = kLongest;
  std::uint64_t at = EncodeHead(head).size();
  const auto place = [&](std::size_t bytes) -> ShardHead::Place {
    if (bytes == 0) return {};
    const std::uint64_t begin = Aligned(at);
    at = begin + bytes;
    return {begin, bytes};
  };
  for (std::size_t c = 0; c < columns.size(); ++c) {
    head.places[c] = {.values = place(columns[c].values.size()),
                      .offsets = place(columns[c].offsets.size_bytes()),
                      .validity = place(columns[c].validity.size())};
  }
  head.size = at;
  return head;
}

std::vector<std::byte> EncodeHead(const ShardHead& head) {
  std::vector<std::uint8_t> packed;
  try {
    packed = Json::to_msgpack(Describe(head));
  } catch (const Json::exception& error) {
    throw Error(Code::kInvalidArgument,
                fmt::format("a column's name is not UTF-8: {}", error.what()));
  }
  if (packed.size() > kMaxHead) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{} columns are described by {}, above the limit of {}; use fewer",
                            head.specs.size(), HumanBytes(packed.size()), HumanBytes(kMaxHead)));
  }
  const std::array<std::uint64_t, 2> prefix{kMagic, packed.size()};
  std::vector<std::byte> bytes(kPrefix + packed.size());
  std::memcpy(bytes.data(), prefix.data(), kPrefix);
  std::memcpy(bytes.data() + kPrefix, packed.data(), packed.size());
  return bytes;
}

ShardHead DecodeHead(std::span<const std::byte> memory) {
  std::array<std::uint64_t, 2> prefix{};
  if (memory.size() < kPrefix) ThrowDamaged("it is too short");
  std::memcpy(prefix.data(), memory.data(), kPrefix);
  if (prefix[0] != kMagic) ThrowDamaged("it does not begin like one");
  if (prefix[1] > kMaxHead || prefix[1] > memory.size() - kPrefix)
    ThrowDamaged("its head is cut off");
  if (!IsShallowMessagePack(memory.subspan(kPrefix, prefix[1])))
    ThrowDamaged("its head is too deep");
  const auto* const text = reinterpret_cast<const std::uint8_t*>(memory.data() + kPrefix);
  const Json json = Json::from_msgpack(text, text + prefix[1], true, false);
  if (!json.is_object()) ThrowDamaged("its head cannot be read");
  try {
    return ReadHead(json, kPrefix + prefix[1], memory.size());
  } catch (const Json::exception&) {
    ThrowDamaged("its head lacks something");
  }
}

}  // namespace orca::data
