// A zip of data.pkl, which says what there is, and data/<key>, the memory of tensors.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "io/array_parsers.h"
#include "io/pickle.h"
#include "io/strict_json.h"
#include "io/tensor_types.h"
#include "io/torch_parser.h"
#include "io/zip_file.h"
#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/io/torch_file.h"

namespace orca::io {
namespace {

using Kind = PickleNode::Kind;

// How torch before 1.6 began its files: a pickle of protocol 2 with a number.
constexpr std::string_view kOldStart = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
constexpr std::uint64_t kMaxPickle = std::uint64_t{64} << 20;
// A few bytes of a file can stand for much: values that are used again, tensors of stride 0. What
// nobody saves in earnest is refused before it takes the memory.
constexpr std::uint64_t kMaxGrowth = 4;
constexpr std::uint64_t kFreeGrowth = 4096;
constexpr std::uint64_t kMaxCopyGrowth = 64;
constexpr std::uint64_t kCheckedCopy = std::uint64_t{1} << 20;

/// What the tensors' views are of.
struct Memory {
  FileView file;
  std::deque<std::vector<std::byte>> copies;
};

struct Storage {
  std::span<const std::byte> bytes;
  const TensorTypeInfo* type = nullptr;  // null: plain bytes
};

/// A tensor as the file describes it.
struct Strided {
  TensorSpec spec;
  std::vector<std::int64_t> strides;  // in elements
  std::int64_t begin = 0;             // in elements
  std::span<const std::byte> storage;
};

bool IsRowMajor(const Strided& tensor) {
  std::int64_t expected = 1;
  for (std::size_t i = tensor.strides.size(); i > 0; --i) {
    const std::int64_t extent = tensor.spec.shape[i - 1];
    if (extent != 1 && tensor.strides[i - 1] != expected) return false;
    expected *= extent;  // at most what ByteSize found to fit
  }
  return true;
}

// One more than the last element that it has in its storage; nothing when that is beyond 64 bits.
std::optional<std::int64_t> EndOf(const Strided& tensor) {
  std::int64_t end = tensor.begin;
  for (std::size_t i = 0; i < tensor.strides.size(); ++i) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(tensor.spec.shape[i] - 1, tensor.strides[i], &reach) ||
        __builtin_add_overflow(end, reach, &end))
      return std::nullopt;
  }
  return __builtin_add_overflow(end, 1, &end) ? std::nullopt : std::optional(end);
}

// The elements row by row. The bounds are checked, and there is at least one element.
std::vector<std::byte> Gather(const Strided& tensor, std::uint64_t bytes) {
  std::vector<std::byte> out;
  out.reserve(bytes);
  const std::size_t element = SizeOf(tensor.spec.type);
  const std::size_t dims = tensor.spec.shape.size();
  std::vector<std::int64_t> index(dims, 0);
  std::int64_t at = tensor.begin;
  while (true) {
    const auto one = tensor.storage.subspan(static_cast<std::size_t>(at) * element, element);
    out.insert(out.end(), one.begin(), one.end());
    std::size_t dim = dims;
    for (; dim > 0; --dim) {
      at += tensor.strides[dim - 1];
      if (++index[dim - 1] < tensor.spec.shape[dim - 1]) break;
      at -= tensor.strides[dim - 1] * tensor.spec.shape[dim - 1];
      index[dim - 1] = 0;
    }
    if (dim == 0) return out;
  }
}

class TorchParser {
 public:
  TorchParser(const Path& path, FileView view) : path_(path) { memory_->file = std::move(view); }

  TorchFile Parse() {
    CheckIsZip();
    const ZipReader zip(path_, memory_->file.bytes);
    zip_ = &zip;
    // torch names the folder of all records after the file, or "archive".
    folder_ = zip.first_name().substr(0, zip.first_name().find('/') + 1);
    CheckByteOrder();
    const auto bytes = zip.Read(folder_ + "data.pkl");
    if (bytes.size() > kMaxPickle) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("{} has {} beside its tensors, and {} can be read; save long lists "
                              "of numbers as tensors",
                              path_.string(), HumanBytes(bytes.size()), HumanBytes(kMaxPickle)));
    }
    units_left_ = kMaxGrowth * bytes.size() + kFreeGrowth;
    copies_left_ = kMaxCopyGrowth * memory_->file.bytes.size();
    const Pickle pickle = ParsePickle(
        path_, bytes, static_cast<std::uint64_t>(bytes.data() - memory_->file.bytes.data()));
    TorchValue value = ValueOf(*pickle.root, 0);
    return {.value = std::move(value), .owner = std::move(memory_)};
  }

 private:
  void CheckIsZip() const {
    const auto bytes = memory_->file.bytes;
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!text.starts_with(kOldStart)) return;
    throw Error(
        Code::kInvalidArgument,
        fmt::format("{} has the format of torch before 1.6, which only torch reads; load it "
                    "and save it again with torch.save(torch.load(...))",
                    path_.string()));
  }

  void CheckByteOrder() const {
    const std::string name = folder_ + "byteorder";
    if (!zip_->Has(name)) return;  // torch before 2.1
    const auto bytes = zip_->Read(name);
    const std::string_view order(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (order == "little") return;
    throw Error(Code::kInvalidArgument,
                fmt::format("{} has the byte order '{}', and 'little' can be read; load and save "
                            "it with torch on this machine",
                            path_.string(), order));
  }

  std::string Place() const {
    return where_.empty() ? "" : fmt::format(" at '{}'", fmt::join(where_, "."));
  }
  [[noreturn]] void Damaged(const PickleNode& node, const std::string& why) const {
    ThrowDamagedArray(path_, fmt::format("{}{} (offset {})", why, Place(), node.offset));
  }
  [[noreturn]] void Refuse(const std::string& what, const std::string& remedy) const {
    throw Error(Code::kInvalidArgument,
                fmt::format("{} holds {}{}; {}", path_.string(), what, Place(), remedy));
  }
  [[noreturn]] void RefuseObject(const std::string& name) const {
    Refuse(fmt::format("a {}, which only Python can make", name), "save a state dict");
  }
  static std::string FullName(const PickleNode& global) {
    return fmt::format("{}.{}", global.module, global.text);
  }
  static bool Is(const PickleNode& node, std::string_view module, std::string_view name) {
    return node.kind == Kind::kGlobal && node.module == module && node.text == name;
  }

  void Spend(std::uint64_t units) {
    if (units > units_left_)
      Refuse("so many values that are the same that they would not fit into memory one by one",
             "save copies, or fewer of them");
    units_left_ -= units;
  }

  TorchValue ValueOf(const PickleNode& node, int depth) {
    Spend(1);
    if (depth > kMaxTorchDepth)
      Refuse(
          fmt::format("lists or dicts more than {} deep, or one that holds itself", kMaxTorchDepth),
          "save a state dict");
    switch (node.kind) {
      case Kind::kNone:
        return {};
      case Kind::kBool:
        return TorchValue::Bool(node.whole != 0);
      case Kind::kInt:
        return TorchValue::Int(node.whole);
      case Kind::kFloat:
        return TorchValue::Float(node.number);
      case Kind::kText:
        Spend(node.text.size());
        if (!IsUtf8(node.text)) Damaged(node, "a text is not UTF-8");
        return TorchValue::Text(std::string(node.text));
      case Kind::kList:
        return TorchValue::List(ItemsOf(node, depth));
      case Kind::kTuple:
        return TorchValue::Tuple(ItemsOf(node, depth));
      case Kind::kDict:
        return DictOf(node, depth);
      case Kind::kCall:
        return CallOf(node, depth);
      case Kind::kGlobal:
        RefuseObject(FullName(node));
      case Kind::kPersistent:
        RefuseObject("storage without a tensor");
      case Kind::kOther:
        RefuseObject(std::string(node.text));
    }
    Damaged(node, "a value is of no kind");
  }

  std::vector<TorchValue> ItemsOf(const PickleNode& node, int depth) {
    std::vector<TorchValue> items;
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      where_.push_back(std::to_string(i));
      items.push_back(ValueOf(*node.items[i], depth + 1));
      where_.pop_back();
    }
    return items;
  }

  TorchValue DictOf(const PickleNode& node, int depth) {
    TorchValue dict = TorchValue::Dict();
    std::set<std::tuple<Kind, std::int64_t, std::string_view>> keys;
    for (std::size_t i = 0; i < node.items.size(); i += 2) {
      const PickleNode& key = *node.items[i];
      TorchValue& made = dict.items.emplace_back(ValueOf(key, depth + 1));
      if (!IsTorchKey(made)) Damaged(key, "a dict has a key that cannot be looked up");
      where_.push_back(made.kind == TorchValue::Kind::kText ? made.text
                                                            : std::to_string(made.whole));
      const bool is_plain = key.kind == Kind::kText || key.kind == Kind::kInt;
      if (is_plain && !keys.emplace(key.kind, key.whole, key.text).second)
        Damaged(key, "a dict has a key twice");
      dict.items.push_back(ValueOf(*node.items[i + 1], depth + 1));
      where_.pop_back();
    }
    return dict;
  }

  TorchValue CallOf(const PickleNode& call, int depth) {
    const PickleNode& function = *call.function;
    if (function.kind != Kind::kGlobal) RefuseObject("result of a call");
    const bool is_dict = Is(function, "collections", "OrderedDict");
    if (is_dict && call.arguments->kind == Kind::kTuple && call.arguments->items.empty())
      return DictOf(call,
                    depth);  // a state dict keeps versions in its attributes: nobody misses them
    if (!call.items.empty() || call.has_state) RefuseObject(FullName(function));
    if (Is(function, "torch", "Size")) {
      const PickleNode& sizes = Argument(call, 0, Kind::kTuple);
      return TorchValue::Tuple(ItemsOf(sizes, depth));
    }
    if (Is(function, "torch._utils", "_rebuild_parameter")) {
      const PickleNode& inner = Argument(call, 0, Kind::kCall);
      TorchValue value = ValueOf(inner, depth + 1);
      if (value.kind != TorchValue::Kind::kTensor) Damaged(inner, "a parameter is no tensor");
      return value;
    }
    const bool is_typed = Is(function, "torch._utils", "_rebuild_tensor_v2");
    if (!is_typed && !Is(function, "torch._utils", "_rebuild_tensor_v3"))
      RefuseObject(FullName(function));
    const auto known = tensors_.find(&call);
    if (known != tensors_.end()) return TorchValue::Of(known->second);
    return TorchValue::Of(tensors_.emplace(&call, TensorOf(call, is_typed)).first->second);
  }

  const PickleNode& Argument(const PickleNode& call, std::size_t index, Kind kind) const {
    if (call.arguments->kind != Kind::kTuple || call.arguments->items.size() <= index)
      Damaged(call, fmt::format("{} has no argument {}", FullName(*call.function), index));
    const PickleNode& argument = *call.arguments->items[index];
    if (argument.kind != kind)
      Damaged(argument,
              fmt::format("argument {} of {} is of another type", index, FullName(*call.function)));
    return argument;
  }

  // _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, metadata]); v3 has the
  // type before the metadata, since the storage has none.
  Tensor TensorOf(const PickleNode& call, bool is_typed) {
    Strided tensor;
    const Storage storage = StorageOf(Argument(call, 0, Kind::kPersistent));
    const TensorTypeInfo* type = is_typed ? storage.type : TypeOf(Argument(call, 6, Kind::kGlobal));
    if (type == nullptr || (!is_typed && storage.type != nullptr))
      Damaged(call, "a tensor and its storage have different types");
    const std::size_t metadata = is_typed ? 6 : 7;
    if (call.arguments->items.size() > metadata) CheckMetadata(*call.arguments->items[metadata]);
    tensor.storage = storage.bytes;
    tensor.spec.type = type->type;
    tensor.begin = Argument(call, 1, Kind::kInt).whole;
    tensor.spec.shape = NumbersOf(Argument(call, 2, Kind::kTuple));
    tensor.strides = NumbersOf(Argument(call, 3, Kind::kTuple));
    return RowMajor(call, std::move(tensor));
  }

  // A view where that is possible.
  Tensor RowMajor(const PickleNode& call, Strided tensor) {
    const TensorTypeInfo& type = InfoOf(tensor.spec.type);
    const auto bytes = ByteSize(type.type, tensor.spec.shape);
    if (!bytes || tensor.strides.size() != tensor.spec.shape.size() || tensor.begin < 0)
      Damaged(call,
              fmt::format("a tensor has the shape ({}), {} strides and begins at {}",
                          fmt::join(tensor.spec.shape, ", "), tensor.strides.size(), tensor.begin));
    if (*bytes == 0) return {.spec = std::move(tensor.spec), .data = {}};
    const std::uint64_t there = tensor.storage.size() / type.bytes;
    const auto end = EndOf(tensor);
    if (!end || static_cast<std::uint64_t>(*end) > there)
      Damaged(call, fmt::format("a tensor of {} with strides ({}) from {} on does not fit its "
                                "storage of {} elements",
                                Describe(tensor.spec), fmt::join(tensor.strides, ", "),
                                tensor.begin, there));
    const std::byte* first =
        tensor.storage.data() + static_cast<std::size_t>(tensor.begin) * type.bytes;
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(first) % type.bytes == 0;
    if (IsRowMajor(tensor) && is_aligned)
      return {.spec = std::move(tensor.spec), .data = {first, *bytes}};
    CheckCopy(tensor.spec, *bytes);
    const auto& copy = memory_->copies.emplace_back(Gather(tensor, *bytes));
    return {.spec = std::move(tensor.spec), .data = copy};
  }

  void CheckCopy(const TensorSpec& spec, std::uint64_t bytes) {
    if (bytes > copies_left_)
      Refuse(fmt::format("a tensor of {} that shares elements, {} in a file of {}", Describe(spec),
                         HumanBytes(bytes), HumanBytes(memory_->file.bytes.size())),
             "save what is different of it");
    copies_left_ -= bytes;
    if (bytes >= kCheckedCopy)
      CheckMemoryFor(bytes, fmt::format("{} of {}", Describe(spec), path_.string()));
  }

  // ('storage', class, key, device, elements)
  Storage StorageOf(const PickleNode& node) {
    const PickleNode& id = *node.arguments;
    if (id.kind != Kind::kTuple || id.items.size() < 5 || id.items[0]->kind != Kind::kText ||
        id.items[0]->text != "storage" || id.items[1]->kind != Kind::kGlobal ||
        id.items[2]->kind != Kind::kText || id.items[4]->kind != Kind::kInt)
      Damaged(node, "a storage is not described");
    Storage storage;
    std::uint64_t element = 1;
    if (!Is(*id.items[1], "torch.storage", "UntypedStorage")) {
      storage.type = TypeOf(*id.items[1]);
      element = storage.type->bytes;
    }
    storage.bytes = RecordOf(id.items[2]->text);
    const std::int64_t count = id.items[4]->whole;
    std::uint64_t expected = 0;
    if (count < 0 ||
        __builtin_mul_overflow(static_cast<std::uint64_t>(count), element, &expected) ||
        storage.bytes.size() != expected)
      Damaged(node, fmt::format("storage '{}' should have {} elements of {} bytes and has {} bytes",
                                id.items[2]->text, count, element, storage.bytes.size()));
    return storage;
  }

  // Each record is compared with its checksum once.
  std::span<const std::byte> RecordOf(std::string_view key) {
    const auto known = records_.find(key);
    if (known != records_.end()) return known->second;
    const auto bytes = zip_->Read(fmt::format("{}data/{}", folder_, key));
    records_.emplace(key, bytes);
    return bytes;
  }

  const TensorTypeInfo* TypeOf(const PickleNode& global) const {
    const auto found = std::ranges::find_if(kTensorTypes, [&](const TensorTypeInfo& info) {
      return global.text == info.name || (!info.torch.empty() && global.text == info.torch);
    });
    if (global.module == "torch" && found != kTensorTypes.end()) return &*found;
    Refuse(fmt::format("a tensor of {}, a type that the engine does not have", FullName(global)),
           "convert it before it is saved");
  }

  // What makes a view of other values: its elements are not those in the file.
  void CheckMetadata(const PickleNode& metadata) const {
    if (metadata.kind == Kind::kNone) return;
    if (metadata.kind == Kind::kDict && metadata.items.empty()) return;
    Refuse("a tensor whose conjugation or sign is still to be applied",
           "save tensor.resolve_conj().resolve_neg()");
  }

  std::vector<std::int64_t> NumbersOf(const PickleNode& tuple) {
    Spend(tuple.items.size());
    std::vector<std::int64_t> numbers;
    for (const PickleNode* item : tuple.items) {
      if (item->kind != Kind::kInt || item->whole < 0)
        Damaged(*item, "a tensor has a size or a stride that is no number from 0 on");
      numbers.push_back(item->whole);
    }
    return numbers;
  }

  const Path& path_;
  std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
  const ZipReader* zip_ = nullptr;
  std::string folder_;
  std::uint64_t units_left_ = 0;
  std::uint64_t copies_left_ = 0;
  std::vector<std::string> where_;  // the keys that lead to the value
  std::map<std::string_view, std::span<const std::byte>> records_;
  std::map<const PickleNode*, Tensor> tensors_;  // one that is used twice is copied once
};

}  // namespace

const TorchValue* TorchValue::Find(std::string_view key) const {
  if (kind != Kind::kDict) return nullptr;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2)
    if (items[i].kind == Kind::kText && items[i].text == key) return &items[i + 1];
  return nullptr;
}

bool IsTorchKey(const TorchValue& value) {
  switch (value.kind) {
    case TorchValue::Kind::kTensor:
    case TorchValue::Kind::kList:
    case TorchValue::Kind::kDict:
      return false;
    default:  // of those without items, all of none
      return std::ranges::all_of(value.items, IsTorchKey);
  }
}

TorchFile ParseTorchFile(const Path& path, FileView view) {
  return TorchParser(path, std::move(view)).Parse();
}

TorchFile ReadTorchFile(const Path& path, FileSystem& files) {
  return ParseTorchFile(path, files.Map(path));
}

}  // namespace orca::io
