#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "io/array_parsers.h"
#include "io/pickle.h"
#include "orca/core/error.h"

namespace orca::io {
namespace {

using Kind = PickleNode::Kind;

constexpr int kOldestProtocol = 2;
constexpr int kNewestProtocol = 5;

/// The stack machine that a pickle is a program for.
class PickleMachine {
 public:
  PickleMachine(const Path& path, std::span<const std::byte> bytes, std::uint64_t offset)
      : path_(path), bytes_(bytes), offset_(offset) {}

  Pickle Run() {
    CheckProtocol();
    while (true) {
      start_ = at_;
      const auto code = Number<std::uint8_t>();
      if (code == '.') break;
      if (Plain(code) || Text(code) || Container(code) || Memo(code) || Object(code)) continue;
      throw Error(Code::kInvalidArgument,
                  fmt::format("{} has the pickle instruction 0x{:02x} at offset {}, which "
                              "torch.save does not use for state dicts; save a state dict",
                              path_.string(), code, offset_ + start_));
    }
    pickle_.root = Pop();
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void Damaged(const std::string& why) const {
    ThrowDamagedArray(path_, fmt::format("{} in its pickle (offset {})", why, offset_ + start_));
  }

  void CheckProtocol() {
    if (bytes_.size() < 2 || bytes_[0] != std::byte{0x80}) Damaged("no protocol is named");
    const int protocol = std::to_integer<int>(bytes_[1]);
    at_ = 2;
    if (protocol >= kOldestProtocol && protocol <= kNewestProtocol) return;
    throw Error(Code::kInvalidArgument,
                fmt::format("{} is pickled with protocol {}; {} to {} can be read: save it with "
                            "pickle_protocol=2",
                            path_.string(), protocol, kOldestProtocol, kNewestProtocol));
  }

  // None, truth values, numbers, frames.
  bool Plain(std::uint8_t code) {
    switch (code) {
      case 0x95:  // FRAME: for readers that do not have the whole
        (void)Take(sizeof(std::uint64_t));
        return true;
      case 'N':
        Push(Kind::kNone);
        return true;
      case 0x88:
      case 0x89:
        Push(Kind::kBool).whole = code == 0x88 ? 1 : 0;
        return true;
      case 'J':
        PushInt(Number<std::int32_t>());
        return true;
      case 'K':
        PushInt(Number<std::uint8_t>());
        return true;
      case 'M':
        PushInt(Number<std::uint16_t>());
        return true;
      case 0x8a:
        PushLong(Take(Number<std::uint8_t>()));
        return true;
      case 0x8b:
        PushLong(Take(Number<std::uint32_t>()));
        return true;
      case 'G': {
        std::uint64_t bits = 0;  // big-endian
        for (const std::byte byte : Take(sizeof bits))
          bits = bits << 8U | std::to_integer<std::uint64_t>(byte);
        Push(Kind::kFloat).number = std::bit_cast<double>(bits);
        return true;
      }
      default:
        return false;
    }
  }

  // Texts; bytes are read over, so that what holds them can be named.
  bool Text(std::uint8_t code) {
    switch (code) {
      case 0x8c:
        PushText(Take(Number<std::uint8_t>()));
        return true;
      case 'X':
        PushText(Take(Number<std::uint32_t>()));
        return true;
      case 0x8d:
        PushText(Take(Number<std::uint64_t>()));
        return true;
      case 'C':
        (void)Take(Number<std::uint8_t>());
        break;
      case 'B':
        (void)Take(Number<std::uint32_t>());
        break;
      case 0x8e:
      case 0x96:
        (void)Take(Number<std::uint64_t>());
        break;
      default:
        return false;
    }
    Push(Kind::kOther).text = "bytes";
    return true;
  }

  bool Container(std::uint8_t code) {
    switch (code) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case '0':
        Pop();
        return true;
      case '1':
        (void)PopToMark();
        return true;
      case ']':
        Push(Kind::kList);
        return true;
      case '}':
        Push(Kind::kDict);
        return true;
      case ')':
        Push(Kind::kTuple);
        return true;
      case 't':
        PushTuple(PopToMark());
        return true;
      case 0x85:
      case 0x86:
      case 0x87:
        PushTuple(PopLast(code - 0x84U));
        return true;
      case 'a':
        Extend(PopLast(1), Kind::kList);
        return true;
      case 'e':
        Extend(PopToMark(), Kind::kList);
        return true;
      case 's':
        Extend(PopLast(2), Kind::kDict);
        return true;
      case 'u':
        Extend(PopToMark(), Kind::kDict);
        return true;
      case 0x8f:
        Push(Kind::kOther).text = "set";
        return true;
      case 0x90:
        Extend(PopToMark(), Kind::kOther);
        return true;
      case 0x91:
        (void)PopToMark();
        Push(Kind::kOther).text = "frozenset";
        return true;
      default:
        return false;
    }
  }

  bool Memo(std::uint8_t code) {
    switch (code) {
      case 'q':
        memo_[Number<std::uint8_t>()] = &Top();
        return true;
      case 'r':
        memo_[Number<std::uint32_t>()] = &Top();
        return true;
      case 0x94:
        memo_[static_cast<std::uint32_t>(memo_.size())] = &Top();
        return true;
      case 'h':
        PushMemo(Number<std::uint8_t>());
        return true;
      case 'j':
        PushMemo(Number<std::uint32_t>());
        return true;
      default:
        return false;
    }
  }

  // Classes and functions, and what they make.
  bool Object(std::uint8_t code) {
    switch (code) {
      case 'c': {
        const std::string_view module = Line();
        const std::string_view name = Line();
        PushGlobal(module, name);
        return true;
      }
      case 0x93: {
        const auto names = PopLast(2);
        if (names[0]->kind != Kind::kText || names[1]->kind != Kind::kText)
          Damaged("a class has no name");
        PushGlobal(names[0]->text, names[1]->text);
        return true;
      }
      case 'R':
      case 0x81: {
        const auto call = PopLast(2);
        PushCall(call[0], call[1]);
        return true;
      }
      case 0x92: {  // with arguments by name
        const auto call = PopLast(3);
        PushCall(call[0], call[1]);
        return true;
      }
      case 'b':
        Pop();
        Top().has_state = true;
        return true;
      case 'Q': {
        const PickleNode* id = Pop();
        Push(Kind::kPersistent).arguments = id;
        return true;
      }
      default:
        return false;
    }
  }

  std::span<const std::byte> Take(std::uint64_t size) {
    if (size > bytes_.size() - at_)
      Damaged(fmt::format("{} bytes should follow and {} do", size, bytes_.size() - at_));
    const auto taken = bytes_.subspan(at_, size);
    at_ += size;
    return taken;
  }
  template <typename T>
  T Number() {
    T value = 0;
    std::memcpy(&value, Take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view Line() {
    const auto left = bytes_.subspan(at_);
    const auto end = std::ranges::find(left, std::byte{'\n'});
    if (end == left.end()) Damaged("a class has no name");
    const auto line = Take(static_cast<std::uint64_t>(end - left.begin()));
    (void)Take(1);
    return AsText(line);
  }
  static std::string_view AsText(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  PickleNode& Push(Kind kind) {
    PickleNode& node = pickle_.nodes.emplace_back();
    node.kind = kind;
    node.offset = offset_ + start_;
    stack_.push_back(&node);
    return node;
  }
  void PushInt(std::int64_t value) { Push(Kind::kInt).whole = value; }
  void PushText(std::span<const std::byte> bytes) { Push(Kind::kText).text = AsText(bytes); }
  void PushTuple(std::vector<const PickleNode*> items) {
    Push(Kind::kTuple).items = std::move(items);
  }
  // Two's complement, little-endian, as many bytes as it takes.
  void PushLong(std::span<const std::byte> bytes) {
    if (bytes.size() > sizeof(std::int64_t)) {
      Push(Kind::kOther).text = "integer beyond 64 bits";
      return;
    }
    const bool is_negative = !bytes.empty() && (bytes.back() & std::byte{0x80}) != std::byte{0};
    std::int64_t value = is_negative ? -1 : 0;
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    PushInt(value);
  }
  void PushGlobal(std::string_view module, std::string_view name) {
    PickleNode& node = Push(Kind::kGlobal);
    node.module = module;
    node.text = name;
  }
  void PushCall(const PickleNode* function, const PickleNode* arguments) {
    PickleNode& node = Push(Kind::kCall);
    node.function = function;
    node.arguments = arguments;
  }
  void PushMemo(std::uint32_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) Damaged(fmt::format("value {} is used and was never kept", index));
    stack_.push_back(found->second);
  }

  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleNode& Top() {
    if (stack_.size() <= floor()) Damaged("a value is missing");
    return *stack_.back();
  }
  PickleNode* Pop() {
    PickleNode* const top = &Top();
    stack_.pop_back();
    return top;
  }
  std::vector<const PickleNode*> PopLast(std::size_t count) {
    if (stack_.size() - floor() < count) Damaged("a value is missing");
    return PopFrom(stack_.size() - count);
  }
  std::vector<const PickleNode*> PopToMark() {
    if (marks_.empty()) Damaged("a mark is missing");
    const std::size_t begin = marks_.back();
    marks_.pop_back();
    return PopFrom(begin);
  }
  std::vector<const PickleNode*> PopFrom(std::size_t begin) {
    std::vector<const PickleNode*> items(stack_.begin() + static_cast<std::ptrdiff_t>(begin),
                                         stack_.end());
    stack_.resize(begin);
    return items;
  }
  // A call may have made something of that kind.
  void Extend(const std::vector<const PickleNode*>& items, Kind kind) {
    PickleNode& top = Top();
    if (top.kind != kind && top.kind != Kind::kCall) Damaged("items are added to what holds none");
    if (kind == Kind::kDict && items.size() % 2 != 0) Damaged("a key has no value");
    top.items.insert(top.items.end(), items.begin(), items.end());
  }

  const Path& path_;
  const std::span<const std::byte> bytes_;
  const std::uint64_t offset_;
  std::size_t at_ = 0;
  std::size_t start_ = 0;  // of the instruction that is carried out
  Pickle pickle_;
  std::vector<PickleNode*> stack_;
  std::vector<std::size_t> marks_;  // sizes of the stack
  std::unordered_map<std::uint32_t, PickleNode*> memo_;
};

}  // namespace

Pickle ParsePickle(const Path& path, std::span<const std::byte> bytes, std::uint64_t offset) {
  return PickleMachine(path, bytes, offset).Run();
}

}  // namespace orca::io
