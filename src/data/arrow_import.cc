#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "data/arrow_format.h"
#include "orca/core/error.h"
#include "orca/core/nesting.h"
#include "orca/data/arrow.h"

namespace orca::data {
namespace {

/// A column of a record batch, and memory for what must be written differently.
struct Imported {
  ColumnSpec spec;
  Column column;
  std::vector<std::byte> values;
  std::vector<std::int64_t> offsets;
  std::vector<std::byte> validity;
};

[[noreturn]] void Refuse(const std::string& column, const std::string& why) {
  throw Error(Code::kInvalidArgument, fmt::format("column '{}' {}", column, why));
}

std::optional<DType> NumberType(std::string_view format) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype != DType::kBFloat16 && format == ArrowFormat(dtype)) return dtype;
  }
  return std::nullopt;
}

bool BitAt(const std::byte* bits, std::uint64_t at) {
  return ((std::to_integer<unsigned>(bits[at / 8]) >> (at % 8)) & 1U) != 0;
}

const std::byte* BufferOf(const ArrowArray& array, std::int64_t index, const std::string& name) {
  if (index >= array.n_buffers) Refuse(name, "lacks a buffer; the Arrow data is damaged");
  return static_cast<const std::byte*>(array.buffers[index]);
}

// A bit a row, from any bit on; nothing when no value is missing.
std::vector<std::byte> Validity(const ArrowArray& array, std::uint64_t offset, std::uint64_t rows,
                                const std::string& name) {
  const std::byte* const bits = array.null_count == 0 ? nullptr : BufferOf(array, 0, name);
  std::vector<std::byte> packed;
  if (bits == nullptr || rows == 0) return packed;
  packed.resize((rows + 7) / 8);
  bool any_missing = false;
  for (std::uint64_t row = 0; row < rows; ++row) {
    if (BitAt(bits, offset + row)) {
      packed[row / 8] |= std::byte{1} << (row % 8);
    } else {
      any_missing = true;
    }
  }
  if (!any_missing) packed.clear();
  return packed;
}

void ImportNumbers(const ArrowArray& array, std::uint64_t offset, std::uint64_t count,
                   Imported& into) {
  const std::byte* const values = BufferOf(array, 1, into.spec.name);
  if (values == nullptr && count > 0) Refuse(into.spec.name, "has no values");
  if (into.spec.dtype != DType::kBool) {
    const std::size_t width = SizeOf(into.spec.dtype);
    if (count > 0) into.column.values = {values + offset * width, count * width};
    return;
  }
  into.values.resize(count);
  for (std::uint64_t i = 0; i < count; ++i) into.values[i] = std::byte{BitAt(values, offset + i)};
  into.column.values = into.values;
}

template <typename Offset>
void ImportTexts(const ArrowArray& array, std::uint64_t offset, std::uint64_t rows,
                 Imported& into) {
  const auto* const offsets = reinterpret_cast<const Offset*>(BufferOf(array, 1, into.spec.name));
  const std::byte* const values = BufferOf(array, 2, into.spec.name);
  into.offsets.assign(rows + 1, 0);
  if (offsets != nullptr && rows > 0) {
    const Offset first = offsets[offset];
    for (std::uint64_t row = 0; row <= rows; ++row)
      into.offsets[row] = static_cast<std::int64_t>(offsets[offset + row] - first);
    const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(into.offsets.back(), 0));
    if (bytes > 0) into.column.values = {values + first, bytes};
  }
  into.column.offsets = into.offsets;
}

// The shape that a fixed_shape_tensor has in its metadata, if it is one.
std::optional<std::vector<std::int64_t>> TensorShape(const char* metadata) {
  if (metadata == nullptr) return std::nullopt;
  const auto number = [&metadata] {
    std::int32_t value = 0;
    std::memcpy(&value, metadata, sizeof value);
    metadata += sizeof value;
    return value;
  };
  for (std::int32_t left = number(); left > 0; --left) {
    const std::int32_t key_bytes = number();
    const std::string_view key(metadata, static_cast<std::size_t>(key_bytes));
    metadata += key_bytes;
    const std::int32_t value_bytes = number();
    const std::string_view value(metadata, static_cast<std::size_t>(value_bytes));
    metadata += value_bytes;
    if (key != "ARROW:extension:metadata" || !IsShallowJson(value)) continue;
    const auto json = nlohmann::json::parse(value, nullptr, false);
    if (!json.is_object() || !json.contains("shape")) return std::nullopt;
    try {
      return json.at("shape").get<std::vector<std::int64_t>>();
    } catch (const nlohmann::json::exception&) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

// Lists of a fixed size, also in each other: a row is what all of them hold.
void ImportLists(const ArrowSchema& schema, const ArrowArray& array, std::uint64_t offset,
                 std::uint64_t rows, Imported& into) {
  const ArrowSchema* type = &schema;
  const ArrowArray* level = &array;
  std::uint64_t count = rows;
  for (std::string_view format = type->format; format.starts_with("+w:"); format = type->format) {
    const long long size = std::strtoll(format.data() + 3, nullptr, 10);
    if (size < 0 || type->n_children != 1 || level->n_children != 1)
      Refuse(into.spec.name, "is a list of a fixed size without its items");
    into.spec.row_shape.push_back(size);
    type = type->children[0];
    level = level->children[0];
    count *= static_cast<std::uint64_t>(size);
    offset = offset * static_cast<std::uint64_t>(size) + static_cast<std::uint64_t>(level->offset);
    const auto items = Validity(*level, offset, count, into.spec.name);
    const std::uint64_t a_row = rows == 0 ? 0 : count / rows;
    for (std::uint64_t i = 0; i < count && !items.empty(); ++i) {
      // What a missing row holds says nothing.
      if (BitAt(items.data(), i) ||
          (!into.validity.empty() && !BitAt(into.validity.data(), i / a_row)))
        continue;
      Refuse(into.spec.name, "has missing values inside of its rows; fill them, or drop the rows");
    }
  }
  const auto dtype = NumberType(type->format);
  if (!dtype) {
    Refuse(into.spec.name, fmt::format("is a list of Arrow type \"{}\"; lists hold numbers of at "
                                       "most 64 bits, signed or uint8, and booleans",
                                       type->format));
  }
  into.spec.dtype = *dtype;
  if (auto shape = TensorShape(schema.metadata)) {
    const std::size_t items = into.spec.row_elements();
    std::swap(into.spec.row_shape, *shape);
    const bool possible = std::ranges::all_of(into.spec.row_shape, [](auto n) { return n >= 0; });
    if (!possible || into.spec.row_elements() != items) std::swap(into.spec.row_shape, *shape);
  }
  ImportNumbers(*level, offset, count, into);
}

void ImportColumn(const ArrowSchema& schema, const ArrowArray& array, std::uint64_t parent_offset,
                  std::uint64_t rows, Imported& into) {
  into.spec.name = schema.name == nullptr ? "" : schema.name;
  const std::string_view format = schema.format;
  const std::uint64_t offset = parent_offset + static_cast<std::uint64_t>(array.offset);
  into.validity = Validity(array, offset, rows, into.spec.name);
  into.column.validity = into.validity;
  if (schema.dictionary != nullptr)
    Refuse(into.spec.name, "is dictionary-encoded; decode it first (dictionary_decode in pyarrow)");
  if (const auto dtype = NumberType(format)) {
    into.spec.dtype = *dtype;
    ImportNumbers(array, offset, rows, into);
  } else if (format == "u" || format == "z") {
    into.spec.kind = format == "u" ? ColumnKind::kString : ColumnKind::kBytes;
    ImportTexts<std::int32_t>(array, offset, rows, into);
  } else if (format == "U" || format == "Z") {
    into.spec.kind = format == "U" ? ColumnKind::kString : ColumnKind::kBytes;
    ImportTexts<std::int64_t>(array, offset, rows, into);
  } else if (format.starts_with("+w:")) {
    ImportLists(schema, array, offset, rows, into);
  } else {
    Refuse(
        into.spec.name,
        fmt::format("has the Arrow type \"{}\", which a shard does not hold; cast it to a signed "
                    "integer, uint8, a float, a boolean, a string or binary",
                    format));
  }
}

}  // namespace

std::shared_ptr<const Shard> PutArrow(const std::shared_ptr<ShardHome>& home,
                                      const ArrowSchema& schema, const ArrowArray& array) {
  if (std::string_view(schema.format) != "+s" || schema.n_children != array.n_children) {
    throw Error(Code::kInvalidArgument,
                fmt::format("the Arrow data has the type \"{}\"; give a record batch or a table",
                            schema.format));
  }
  const auto rows = static_cast<std::uint64_t>(array.length);
  const auto offset = static_cast<std::uint64_t>(array.offset);
  if (!Validity(array, offset, rows, "of all").empty())
    throw Error(Code::kInvalidArgument,
                "some rows of the Arrow data are missing as a whole; drop "
                "them");
  const auto count = static_cast<std::size_t>(schema.n_children);
  std::vector<Imported> imported(count);
  std::vector<ColumnSpec> specs;
  std::vector<Column> columns;
  for (std::size_t c = 0; c < count; ++c) {
    ImportColumn(*schema.children[c], *array.children[c], offset, rows, imported[c]);
    specs.push_back(imported[c].spec);
    columns.push_back(imported[c].column);
  }
  return Shard::Put(home, specs, rows, columns);
}

}  // namespace orca::data
