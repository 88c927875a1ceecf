// NPY: "\x93NUMPY", version, length of the header, the header (a dict of Python), the elements.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "io/array_parsers.h"
#include "orca/core/error.h"
#include "orca/io/array_file.h"
#include "orca/io/atomic_file.h"

namespace orca::io {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kVersionAt = 6;
constexpr std::size_t kLengthAt = 8;
constexpr std::size_t kAlign = 64;
constexpr std::size_t kMaxHeader = std::size_t{1} << 20;

struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

/// Reads the dict that numpy writes: three keys, a text, a truth value and a tuple of numbers.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : left_(text) {}

  std::optional<NpyHeader> Parse() {
    NpyHeader header;
    int seen = 0;
    if (!Take('{')) return std::nullopt;
    while (!Take('}')) {
      const auto key = Text();
      if (!key || !Take(':')) return std::nullopt;
      const int member = Member(*key, header);
      if (member == 0 || (seen & member) != 0) return std::nullopt;
      seen |= member;
      if (!Take(',') && !Peek('}')) return std::nullopt;
    }
    SkipSpace();
    if (seen != 7 || !left_.empty()) return std::nullopt;
    return header;
  }

 private:
  // A bit for the member that was read, 0 when there is none.
  int Member(std::string_view key, NpyHeader& header) {
    if (key == "descr") {
      const auto text = Text();
      if (text) header.descr = *text;
      return text ? 1 : 0;
    }
    if (key == "fortran_order") {
      header.fortran_order = Word("True");
      return header.fortran_order || Word("False") ? 2 : 0;
    }
    return key == "shape" && Shape(header.shape) ? 4 : 0;
  }

  bool Shape(std::vector<std::int64_t>& shape) {
    if (!Take('(')) return false;
    while (!Take(')')) {
      SkipSpace();
      std::int64_t extent = 0;
      const auto [end, error] = std::from_chars(left_.data(), left_.data() + left_.size(), extent);
      if (error != std::errc() || extent < 0) return false;
      left_.remove_prefix(static_cast<std::size_t>(end - left_.data()));
      shape.push_back(extent);
      if (left_.starts_with('L')) left_.remove_prefix(1);  // a long of Python 2
      if (!Take(',') && !Peek(')')) return false;
    }
    return true;
  }

  std::optional<std::string_view> Text() {
    SkipSpace();
    if (!left_.starts_with('\'') && !left_.starts_with('"')) return std::nullopt;
    const std::size_t end = left_.find(left_[0], 1);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view text = left_.substr(1, end - 1);
    left_.remove_prefix(end + 1);
    return text;
  }

  bool Word(std::string_view word) {
    SkipSpace();
    if (!left_.starts_with(word)) return false;
    left_.remove_prefix(word.size());
    return true;
  }
  bool Peek(char wanted) {
    SkipSpace();
    return left_.starts_with(wanted);
  }
  bool Take(char wanted) {
    if (!Peek(wanted)) return false;
    left_.remove_prefix(1);
    return true;
  }
  void SkipSpace() {
    left_.remove_prefix(std::min(left_.find_first_not_of(" \t\n"), left_.size()));
  }

  std::string_view left_;
};

const TensorTypeInfo& TypeOf(const std::string& descr, const Path& path) {
  const std::string_view name =
      std::string_view(descr).substr(std::min<std::size_t>(1, descr.size()));
  const bool has_order =
      !descr.empty() && std::string_view("<>|=").find(descr[0]) != std::string_view::npos;
  const auto known = std::ranges::find_if(kTensorTypes, [&](const TensorTypeInfo& info) {
    return !info.numpy.empty() && info.numpy == name;
  });
  if (has_order && known != kTensorTypes.end()) return *known;
  throw Error(Code::kInvalidArgument,
              fmt::format("{} holds elements of '{}'; numbers of 1 to 8 bytes, booleans and "
                          "complex64 can be read: convert them with numpy",
                          path.string(), descr));
}

}  // namespace

FileTensor ParseNpy(const Path& path, FileView view) {
  const auto bytes = view.bytes;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kMagic) || text.size() < kLengthAt + 2)
    ThrowDamagedArray(path, "it does not begin like an NPY file");
  const char version = text[kVersionAt];
  if (version < 1 || version > 3)
    ThrowDamagedArray(path, fmt::format("its format is {}; 1 to 3 are known", int{version}));
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  std::uint32_t length = 0;
  if (text.size() < kLengthAt + length_bytes) ThrowDamagedArray(path, "its header is cut off");
  std::memcpy(&length, bytes.data() + kLengthAt, length_bytes);
  const std::size_t header_at = kLengthAt + length_bytes;
  if (length > kMaxHeader || length > text.size() - header_at)
    ThrowDamagedArray(path, fmt::format("it announces a header of {} bytes and has {} in all",
                                        length, bytes.size()));
  const auto header = HeaderParser(text.substr(header_at, length)).Parse();
  if (!header) {
    throw Error(Code::kInvalidArgument,
                fmt::format("the header of {} is not that of one plain array (records and objects "
                            "cannot be read)",
                            path.string()));
  }
  const TensorTypeInfo& type = TypeOf(header->descr, path);
  FileTensor file{.tensor = {.spec = {.name = path.filename().string(),
                                      .type = type.type,
                                      .shape = header->shape},
                             .data = bytes.subspan(header_at + length)},
                  .owner = std::move(view.owner)};
  const auto wide = std::ranges::count_if(header->shape, [](std::int64_t n) { return n != 1; });
  if (header->fortran_order && wide > 1) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{} has its columns first; save numpy.ascontiguousarray(array)",
                            path.string()));
  }
  const auto size = ByteSize(type.type, header->shape);
  if (!size || *size != file.tensor.data.size()) {
    ThrowDamagedArray(path, fmt::format("it says {} and has {} bytes of elements",
                                        Describe(file.tensor.spec), file.tensor.data.size()));
  }
  if (header->descr[0] == '>' && type.bytes > 1) {
    // A complex number is two, each turned around by itself.
    const std::size_t element = type.type == TensorType::kComplex64 ? 4 : type.bytes;
    FileView swapped = ViewOf(SwapElements(file.tensor.data, element));
    file.tensor.data = swapped.bytes;
    file.owner = std::move(swapped.owner);
  }
  return file;
}

FileTensor ReadNpy(const Path& path, FileSystem& files) { return ParseNpy(path, files.Map(path)); }

void WriteNpy(const Path& path, const Tensor& tensor, FileSystem& files) {
  CheckTensor(tensor);
  const TensorTypeInfo& type = InfoOf(tensor.spec.type);
  if (type.numpy.empty()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("numpy has no {}; write a safetensors file", type.name));
  }
  std::string shape = fmt::format("{}", fmt::join(tensor.spec.shape, ", "));
  if (tensor.spec.shape.size() == 1) shape += ',';
  std::string header = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}), }}",
                                   type.bytes == 1 ? '|' : '<', type.numpy, shape);
  // Format 1 counts the header in 16 bits; 2 is for more dimensions than numpy has.
  const std::size_t head = kLengthAt + 2;
  header.append(kAlign - (head + header.size()) % kAlign - 1, ' ');
  header += '\n';
  if (header.size() > 0xffff)
    throw Error(Code::kInvalidArgument,
                fmt::format("numpy has no array of {} dimensions", tensor.spec.shape.size()));
  std::string start(kMagic);
  start += {'\x01', '\x00', static_cast<char>(header.size() & 0xffU),
            static_cast<char>(header.size() >> 8U)};
  AtomicFile file(files, path, Access::kUmask);
  file.Write(start + header);
  file.Write(tensor.data);
  file.Commit();
}

}  // namespace orca::io
