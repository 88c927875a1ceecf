#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "data/arrow_format.h"
#include "orca/data/arrow.h"
#include "orca/data/csv.h"

namespace orca::data {
namespace {

constexpr std::int64_t kNullable = 2;  // ARROW_FLAG_NULLABLE

/// What a schema points to.
struct SchemaParts {
  std::string format;
  std::string name;
  std::string metadata;
  std::vector<std::unique_ptr<ArrowSchema>> owned;
  std::vector<ArrowSchema*> children;
};

/// What an array points to.
struct ArrayParts {
  std::shared_ptr<const void> owner;  // of the memory
  std::vector<std::byte> packed;
  std::vector<const void*> buffers;
  std::vector<std::unique_ptr<ArrowArray>> owned;
  std::vector<ArrowArray*> children;
};

// A receiver may have taken a child for itself: then it is released already.
template <typename Struct, typename Parts>
void Release(Struct* released) {
  const std::unique_ptr<Parts> parts(static_cast<Parts*>(released->private_data));
  for (const auto& child : parts->owned)
    if (child->release != nullptr) child->release(child.get());
  released->release = nullptr;
}

template <typename Struct, typename Parts>
Struct* AddChild(Parts& parts) {
  parts.owned.push_back(std::make_unique<Struct>());
  parts.children.push_back(parts.owned.back().get());
  return parts.owned.back().get();
}

void Finish(std::unique_ptr<SchemaParts> parts, ArrowSchema* schema) {
  *schema = {.format = parts->format.c_str(),
             .name = parts->name.c_str(),
             .metadata = parts->metadata.empty() ? nullptr : parts->metadata.data(),
             .flags = kNullable,
             .n_children = static_cast<std::int64_t>(parts->children.size()),
             .children = parts->children.data(),
             .dictionary = nullptr,
             .release = &Release<ArrowSchema, SchemaParts>,
             .private_data = nullptr};
  schema->private_data = parts.release();
}

void Finish(std::unique_ptr<ArrayParts> parts, std::uint64_t length, ArrowArray* array) {
  const bool may_miss = !parts->buffers.empty() && parts->buffers.front() != nullptr;
  *array = {.length = static_cast<std::int64_t>(length),
            .null_count = may_miss ? -1 : 0,
            .offset = 0,
            .n_buffers = static_cast<std::int64_t>(parts->buffers.size()),
            .n_children = static_cast<std::int64_t>(parts->children.size()),
            .buffers = parts->buffers.data(),
            .children = parts->children.data(),
            .dictionary = nullptr,
            .release = &Release<ArrowArray, ArrayParts>,
            .private_data = nullptr};
  array->private_data = parts.release();
}

// Number of pairs, then each length and text, all in the machine's own order.
std::string Metadata(std::initializer_list<std::pair<std::string, std::string>> pairs) {
  std::string encoded;
  const auto number = [&](std::size_t value) {
    const auto small = static_cast<std::int32_t>(value);
    std::array<char, sizeof small> bytes{};
    std::memcpy(bytes.data(), &small, sizeof small);
    encoded.append(bytes.data(), bytes.size());
  };
  number(pairs.size());
  for (const auto& [key, value] : pairs) {
    number(key.size());
    encoded += key;
    number(value.size());
    encoded += value;
  }
  return encoded;
}

void ExportSpec(const ColumnSpec& spec, ArrowSchema* schema) {
  auto parts = std::make_unique<SchemaParts>();
  parts->name = spec.name;
  if (spec.kind != ColumnKind::kFixed) {
    parts->format = spec.kind == ColumnKind::kString ? "U" : "Z";
  } else if (spec.row_shape.empty()) {
    parts->format = ArrowFormat(spec.dtype);
  } else {
    parts->format = fmt::format("+w:{}", spec.row_elements());
    if (spec.row_elements() > 0) {
      parts->metadata =
          Metadata({{"ARROW:extension:name", "arrow.fixed_shape_tensor"},
                    {"ARROW:extension:metadata",
                     fmt::format(R"({{"shape":[{}]}})", fmt::join(spec.row_shape, ","))}});
    }
    ExportSpec({.name = "item", .dtype = spec.dtype}, AddChild<ArrowSchema>(*parts));
  }
  Finish(std::move(parts), schema);
}

std::vector<std::byte> PackBits(std::span<const std::byte> bytes) {
  std::vector<std::byte> bits((bytes.size() + 7) / 8);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != std::byte{0}) bits[i / 8] |= std::byte{1} << (i % 8);
  return bits;
}

const void* OrNull(std::span<const std::byte> bytes) {
  return bytes.empty() ? nullptr : bytes.data();
}

void ExportNumbers(const std::shared_ptr<const void>& owner, DType dtype, std::uint64_t length,
                   const Column& column, ArrowArray* array) {
  auto parts = std::make_unique<ArrayParts>();
  parts->owner = owner;
  parts->buffers = {OrNull(column.validity), column.values.data()};
  if (dtype == DType::kBool) {
    parts->packed = PackBits(column.values);
    parts->buffers[1] = parts->packed.data();
  }
  Finish(std::move(parts), length, array);
}

void ExportColumn(const std::shared_ptr<const void>& owner, const ColumnSpec& spec,
                  std::uint64_t rows, const Column& column, ArrowArray* array) {
  if (spec.kind == ColumnKind::kFixed && spec.row_shape.empty())
    return ExportNumbers(owner, spec.dtype, rows, column, array);
  auto parts = std::make_unique<ArrayParts>();
  parts->owner = owner;
  parts->buffers = {OrNull(column.validity)};
  if (spec.kind == ColumnKind::kFixed) {
    ExportNumbers(owner, spec.dtype, rows * spec.row_elements(), {column.values},
                  AddChild<ArrowArray>(*parts));
  } else {
    parts->buffers.push_back(column.offsets.data());
    parts->buffers.push_back(column.values.data());
  }
  Finish(std::move(parts), rows, array);
}

// Of a shard, or of another table with specs, columns and rows.
template <typename Table>
void Export(const std::shared_ptr<const Table>& table, ArrowSchema* schema, ArrowArray* array) {
  auto described = std::make_unique<SchemaParts>();
  auto parts = std::make_unique<ArrayParts>();
  described->format = "+s";
  parts->owner = table;
  parts->buffers = {nullptr};
  for (std::size_t c = 0; c < table->specs().size(); ++c) {
    ExportSpec(table->specs()[c], AddChild<ArrowSchema>(*described));
    ExportColumn(table, table->specs()[c], table->rows(), table->columns()[c],
                 AddChild<ArrowArray>(*parts));
  }
  Finish(std::move(described), schema);
  Finish(std::move(parts), table->rows(), array);
}

}  // namespace

void ExportArrow(const std::shared_ptr<const Shard>& shard, ArrowSchema* schema,
                 ArrowArray* array) {
  Export(shard, schema, array);
}

void ExportArrow(const std::shared_ptr<const CsvTable>& table, ArrowSchema* schema,
                 ArrowArray* array) {
  Export(table, schema, array);
}

}  // namespace orca::data
