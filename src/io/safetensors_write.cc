#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "io/safetensors_layout.h"
#include "io/tensor_types.h"
#include "orca/core/error.h"
#include "orca/io/atomic_file.h"

namespace orca::io {
namespace {

constexpr std::string_view kReserved = "__metadata__";
constexpr std::size_t kAlign = 8;
// What readers of the format accept.
constexpr std::size_t kMaxHeader = 100'000'000;

std::string Quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(Code::kInvalidArgument,
                "a tensor's name or a text of the metadata is not UTF-8; give text");
  }
}

void CheckNames(std::span<const Tensor> tensors) {
  std::set<std::string_view> names;
  for (const Tensor& tensor : tensors) {
    CheckTensor(tensor);
    const std::string& name = tensor.spec.name;
    if (name == kReserved)
      throw Error(
          Code::kInvalidArgument,
          fmt::format("no tensor may be named '{}': the format keeps its texts there", name));
    if (!names.insert(name).second)
      throw Error(Code::kInvalidArgument,
                  fmt::format("two tensors are named '{}'; names must differ", name));
  }
}

}  // namespace

SafetensorsLayout LayOutSafetensors(std::span<const Tensor> tensors, const Metadata& metadata) {
  CheckNames(tensors);
  SafetensorsLayout layout;
  for (const Tensor& tensor : tensors) layout.order.push_back(&tensor);
  // The format allows no gaps: large elements first keeps each tensor aligned to its elements.
  std::ranges::stable_sort(layout.order, std::ranges::greater(),
                           [](const Tensor* tensor) { return SizeOf(tensor->spec.type); });
  std::string header = "{";
  if (!metadata.empty()) {
    header += fmt::format("\"{}\":{{", kReserved);
    for (const auto& [key, text] : metadata)
      header += fmt::format("{}{}:{}", header.ends_with('{') ? "" : ",", Quoted(key), Quoted(text));
    header += '}';
  }
  std::uint64_t at = 0;
  for (const Tensor* tensor : layout.order) {
    const TensorSpec& spec = tensor->spec;
    header +=
        fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                    header.size() == 1 ? "" : ",", Quoted(spec.name), InfoOf(spec.type).stored,
                    fmt::join(spec.shape, ","), at, at + tensor->data.size());
    at += tensor->data.size();
  }
  header += '}';
  header.append((kAlign - header.size() % kAlign) % kAlign, ' ');
  if (header.size() > kMaxHeader) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{} tensors are described by {} bytes, above the format's limit of {}; "
                            "write several files",
                            tensors.size(), header.size(), kMaxHeader));
  }
  const std::uint64_t length = header.size();
  static_assert(std::endian::native == std::endian::little);
  layout.head.resize(sizeof length);
  std::memcpy(layout.head.data(), &length, sizeof length);
  layout.head += header;
  return layout;
}

void WriteSafetensors(const Path& path, std::span<const Tensor> tensors, const Metadata& metadata,
                      FileSystem& files) {
  const SafetensorsLayout layout = LayOutSafetensors(tensors, metadata);
  AtomicFile file(files, path, Access::kUmask);
  file.Write(layout.head);
  for (const Tensor* tensor : layout.order) file.Write(tensor->data);
  file.Commit();
}

}  // namespace orca::io
