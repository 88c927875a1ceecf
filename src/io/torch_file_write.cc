#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "io/strict_json.h"
#include "io/tensor_types.h"
#include "io/torch_parser.h"
#include "io/zip_file.h"
#include "orca/core/error.h"
#include "orca/io/atomic_file.h"
#include "orca/io/torch_file.h"

namespace orca::io {
namespace {

using Kind = TorchValue::Kind;

constexpr std::string_view kFolder = "archive";  // as torch calls it in files without a name

/// Writes a pickle of protocol 2, with those instructions only that weights_only=True allows.
class TorchPickler {
 public:
  explicit TorchPickler(const TorchValue& value) {
    pickle_ = "\x80\x02";
    Put(value, 0);
    pickle_ += '.';
  }

  const std::string& pickle() const { return pickle_; }
  /// Of these the data follow as records 0, 1, ...
  const std::vector<const Tensor*>& tensors() const { return tensors_; }

 private:
  [[noreturn]] void Refuse(const std::string& why) const {
    throw Error(Code::kInvalidArgument,
                where_.empty() ? why : fmt::format("at '{}': {}", fmt::join(where_, "."), why));
  }

  void Put(const TorchValue& value, int depth) {
    if (depth > kMaxTorchDepth)
      Refuse(
          fmt::format("lists or dicts are more than {} deep; save flatter ones", kMaxTorchDepth));
    switch (value.kind) {
      case Kind::kNone:
        pickle_ += 'N';
        return;
      case Kind::kBool:
        pickle_ += value.flag ? '\x88' : '\x89';
        return;
      case Kind::kInt:
        return PutInt(value.whole);
      case Kind::kFloat: {
        const auto bits = std::bit_cast<std::uint64_t>(value.number);
        pickle_ += 'G';
        for (unsigned shift = 64; shift > 0; shift -= 8)
          pickle_ += static_cast<char>(bits >> (shift - 8) & 0xffU);
        return;
      }
      case Kind::kText:
        return PutText(value.text);
      case Kind::kTensor:
        return PutTensor(value.tensor);
      case Kind::kList:
        pickle_ += "](";
        PutItems(value, depth);
        pickle_ += 'e';
        return;
      case Kind::kTuple:
        pickle_ += '(';
        PutItems(value, depth);
        pickle_ += 't';
        return;
      case Kind::kDict:
        return PutDict(value, depth);
    }
    Refuse(fmt::format("a value has the kind {}, which is none", static_cast<int>(value.kind)));
  }

  void PutItems(const TorchValue& value, int depth) {
    for (std::size_t i = 0; i < value.items.size(); ++i) {
      where_.push_back(std::to_string(i));
      Put(value.items[i], depth + 1);
      where_.pop_back();
    }
  }

  void PutDict(const TorchValue& dict, int depth) {
    if (dict.items.size() % 2 != 0)
      Refuse(fmt::format("a dict has {} items; give a value for each key", dict.items.size()));
    std::set<std::string> keys;
    pickle_ += "}(";
    for (std::size_t i = 0; i < dict.items.size(); i += 2) {
      const TorchValue& key = dict.items[i];
      if (!IsTorchKey(key))
        Refuse("a tensor, a list or a dict is a key, which Python cannot look up; give texts");
      const std::size_t begin = pickle_.size();
      Put(key, depth + 1);
      where_.push_back(key.kind == Kind::kText ? key.text : std::to_string(key.whole));
      if (!keys.insert(pickle_.substr(begin)).second)
        Refuse("two entries of a dict have this key; keys must differ");
      Put(dict.items[i + 1], depth + 1);
      where_.pop_back();
    }
    pickle_ += 'u';
  }

  void PutInt(std::int64_t value) {
    const bool is_short = value == static_cast<std::int32_t>(value);
    const std::size_t size = is_short ? sizeof(std::int32_t) : sizeof value;
    pickle_ += is_short ? "J" : "\x8a\x08";
    static_assert(std::endian::native == std::endian::little);
    pickle_.append(reinterpret_cast<const char*>(&value), size);
  }

  void PutText(std::string_view text) {
    if (text.size() > std::numeric_limits<std::uint32_t>::max())
      Refuse(fmt::format("a text has {} bytes; no pickle of protocol 2 holds more than 4 GiB",
                         text.size()));
    if (!IsUtf8(text)) Refuse("a text is not UTF-8; give bytes as a tensor of uint8");
    const auto size = static_cast<std::uint32_t>(text.size());
    pickle_ += 'X';
    pickle_.append(reinterpret_cast<const char*>(&size), sizeof size);
    pickle_ += text;
  }

  void PutGlobal(std::string_view module, std::string_view name) {
    pickle_ += fmt::format("c{}\n{}\n", module, name);
  }

  // As torch's Tensor.__reduce_ex__ has it: the new types come with a storage of bytes.
  void PutTensor(const Tensor& tensor) {
    Tensor named = tensor;
    named.spec.name = fmt::to_string(fmt::join(where_, "."));
    CheckTensor(named);
    const TensorTypeInfo& type = InfoOf(tensor.spec.type);
    const bool is_typed = !type.torch.empty();
    PutGlobal("torch._utils", is_typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    pickle_ += "((";
    PutText("storage");
    PutGlobal(is_typed ? "torch" : "torch.storage", is_typed ? type.torch : "UntypedStorage");
    PutText(std::to_string(tensors_.size()));
    PutText("cpu");
    PutInt(static_cast<std::int64_t>(tensor.data.size() / (is_typed ? type.bytes : 1)));
    pickle_ += "tQ";
    PutInt(0);
    pickle_ += '(';
    for (const std::int64_t extent : tensor.spec.shape) PutInt(extent);
    pickle_ += "t(";
    for (const std::int64_t stride : StridesOf(tensor.spec.shape)) PutInt(stride);
    pickle_ += "t\x89";
    PutGlobal("collections", "OrderedDict");
    pickle_ += ")R";
    if (!is_typed) PutGlobal("torch", type.name);
    pickle_ += "tR";
    tensors_.push_back(&tensor);
  }

  // As torch gives them, where a dimension of 0 counts as one of 1.
  static std::vector<std::int64_t> StridesOf(const std::vector<std::int64_t>& shape) {
    std::vector<std::int64_t> strides(shape.size(), 1);
    for (std::size_t i = shape.size(); i > 1; --i)
      strides[i - 2] = strides[i - 1] * std::max<std::int64_t>(shape[i - 1], 1);
    return strides;
  }

  std::string pickle_;
  std::vector<const Tensor*> tensors_;
  std::vector<std::string> where_;  // the keys that lead to the value
};

}  // namespace

void EncodeTorchFile(const TorchValue& value, const ByteSink& sink) {
  const TorchPickler pickler(value);
  const auto record = [](const auto& name) { return fmt::format("{}/{}", kFolder, name); };
  ZipWriter zip(sink);
  zip.Add(record("data.pkl"), pickler.pickle());
  zip.Add(record("byteorder"), "little");
  for (std::size_t i = 0; i < pickler.tensors().size(); ++i)
    zip.Add(record(fmt::format("data/{}", i)), pickler.tensors()[i]->data);
  zip.Add(record("version"), "3\n");
  zip.Finish();
}

void WriteTorchFile(const Path& path, const TorchValue& value, FileSystem& files) {
  std::optional<AtomicFile> file;  // made by the first bytes: what is refused leaves the disk alone
  EncodeTorchFile(value, [&](std::span<const std::byte> bytes) {
    if (!file) file.emplace(files, path, Access::kUmask);
    file->Write(bytes);
  });
  file->Commit();
}

std::string TorchFileBytes(const TorchValue& value) {
  std::string bytes;
  EncodeTorchFile(value, [&](std::span<const std::byte> piece) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return bytes;
}

}  // namespace orca::io
