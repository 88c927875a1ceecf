// IDX: two zeros, a type, the number of dimensions, the dimensions (u32), the elements. All
// big-endian.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "io/array_parsers.h"
#include "orca/core/error.h"
#include "orca/io/array_file.h"
#include "orca/io/atomic_file.h"

namespace orca::io {
namespace {

constexpr std::size_t kPrefix = 4;
constexpr std::size_t kDimension = 4;
constexpr std::size_t kMaxDimensions = 255;
constexpr std::size_t kPiece = std::size_t{1} << 20;

struct IdxType {
  std::uint8_t code;
  TensorType type;
};
constexpr std::array<IdxType, 6> kTypes = {{{0x08, TensorType::kUInt8},
                                            {0x09, TensorType::kInt8},
                                            {0x0b, TensorType::kInt16},
                                            {0x0c, TensorType::kInt32},
                                            {0x0d, TensorType::kFloat32},
                                            {0x0e, TensorType::kFloat64}}};

std::uint32_t BigEndian(std::span<const std::byte> bytes) {
  std::uint32_t value = 0;
  for (const std::byte byte : bytes.first(kDimension))
    value = (value << 8U) | std::to_integer<std::uint32_t>(byte);
  return value;
}

}  // namespace

FileTensor ParseIdx(const Path& path, FileView view) {
  const auto bytes = view.bytes;
  if (bytes.size() < kPrefix || bytes[0] != std::byte{0} || bytes[1] != std::byte{0})
    ThrowDamagedArray(path, "it does not begin like an IDX file");
  const auto code = std::to_integer<std::uint8_t>(bytes[2]);
  const auto known = std::ranges::find(kTypes, code, &IdxType::code);
  if (known == kTypes.end())
    ThrowDamagedArray(path, fmt::format("IDX has no elements of type {:#04x}", code));
  const std::size_t dimensions = std::to_integer<std::size_t>(bytes[3]);
  const std::size_t data_at = kPrefix + dimensions * kDimension;
  if (bytes.size() < data_at) ThrowDamagedArray(path, "its dimensions are cut off");
  FileTensor file{
      .tensor = {.spec = {.name = path.filename().string(), .type = known->type, .shape = {}},
                 .data = bytes.subspan(data_at)},
      .owner = std::move(view.owner)};
  TensorSpec& spec = file.tensor.spec;
  for (std::size_t i = 0; i < dimensions; ++i)
    spec.shape.push_back(BigEndian(bytes.subspan(kPrefix + i * kDimension)));
  const auto size = ByteSize(spec.type, spec.shape);
  if (!size || *size != file.tensor.data.size()) {
    ThrowDamagedArray(path, fmt::format("it says {} and has {} bytes of elements", Describe(spec),
                                        file.tensor.data.size()));
  }
  if (SizeOf(spec.type) > 1) {
    FileView swapped = ViewOf(SwapElements(file.tensor.data, SizeOf(spec.type)));
    file.tensor.data = swapped.bytes;
    file.owner = std::move(swapped.owner);
  }
  return file;
}

FileTensor ReadIdx(const Path& path, FileSystem& files) {
  FileView view = files.Map(path);
  if (IsGzip(view.bytes)) view = Unzip(path, view.bytes);
  return ParseIdx(path, std::move(view));
}

void WriteIdx(const Path& path, const Tensor& tensor, FileSystem& files) {
  CheckTensor(tensor);
  const TensorSpec& spec = tensor.spec;
  const auto known = std::ranges::find(kTypes, spec.type, &IdxType::type);
  if (known == kTypes.end() || spec.shape.size() > kMaxDimensions ||
      std::ranges::any_of(spec.shape, [](std::int64_t n) { return n > 0xffffffffLL; })) {
    throw Error(Code::kInvalidArgument,
                fmt::format("IDX cannot hold {}: it has uint8, int8, int16, int32, float32 and "
                            "float64, {} dimensions, each below 2^32",
                            Describe(spec), kMaxDimensions));
  }
  std::vector<std::byte> head{std::byte{0}, std::byte{0}, static_cast<std::byte>(known->code),
                              static_cast<std::byte>(spec.shape.size())};
  for (const std::int64_t extent : spec.shape)
    for (const unsigned shift : {24U, 16U, 8U, 0U})
      head.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(extent) >> shift));
  AtomicFile file(files, path, Access::kUmask);
  file.Write(head);
  for (std::size_t at = 0; at < tensor.data.size(); at += kPiece) {
    const auto piece = tensor.data.subspan(at, std::min(kPiece, tensor.data.size() - at));
    file.Write(SwapElements(piece, SizeOf(spec.type)));
  }
  file.Commit();
}

}  // namespace orca::io
