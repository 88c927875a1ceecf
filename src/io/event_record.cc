#include "io/event_record.h"

#include <array>
#include <bit>
#include <cstring>

#include "orca/core/crc32c.h"

namespace orca::io {
namespace {

using Bytes = std::span<const std::byte>;

// Of protocol buffers.
enum class Wire : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Of TensorBoard's event.proto, summary.proto and tensor.proto.
constexpr std::uint32_t kEventWallTime = 1;
constexpr std::uint32_t kEventStep = 2;
constexpr std::uint32_t kEventFileVersion = 3;
constexpr std::uint32_t kEventSummary = 5;
constexpr std::uint32_t kSummaryValue = 1;
constexpr std::uint32_t kValueTag = 1;
constexpr std::uint32_t kValueSimple = 2;
constexpr std::uint32_t kValueTensor = 8;
constexpr std::uint32_t kValueMetadata = 9;
constexpr std::uint32_t kMetadataPlugin = 1;
constexpr std::uint32_t kPluginName = 1;
constexpr std::uint32_t kPluginContent = 2;
constexpr std::uint32_t kTensorType = 1;
constexpr std::uint32_t kTensorContent = 4;
constexpr std::uint32_t kTensorFloats = 5;
constexpr std::uint32_t kTensorDoubles = 6;
constexpr std::uint32_t kTensorInts = 7;
constexpr std::uint32_t kTensorInt64s = 10;
constexpr std::uint64_t kTypeFloat = 1;
constexpr std::uint64_t kTypeDouble = 2;
constexpr std::uint64_t kTypeInt32 = 3;
constexpr std::uint64_t kTypeInt64 = 9;

// Of the hparams plugin's plugin_data.proto and api.proto, and of struct.proto.
constexpr std::uint32_t kDataStart = 3;
constexpr std::uint32_t kDataEnd = 4;
constexpr std::uint32_t kStartHparam = 1;
constexpr std::uint32_t kStartTime = 5;
constexpr std::uint32_t kEndStatus = 1;
constexpr std::uint32_t kEndTime = 2;
constexpr std::uint32_t kMapKey = 1;
constexpr std::uint32_t kMapValue = 2;
constexpr std::uint32_t kStructNumber = 2;
constexpr std::uint32_t kStructText = 3;
constexpr std::uint32_t kStructBool = 4;
constexpr std::uint64_t kStatusSuccess = 1;
constexpr std::uint64_t kStatusFailure = 2;

constexpr std::size_t kHead = sizeof(std::uint64_t) + sizeof(std::uint32_t);
constexpr std::size_t kTail = sizeof(std::uint32_t);

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

// As the format has it: the checksum of bytes that hold a plain checksum would say little.
std::uint32_t MaskedCrc(Bytes bytes) {
  const std::uint32_t crc = Crc32c(bytes.data(), bytes.size());
  return std::rotr(crc, 15) + 0xa282ead8U;
}

/// Builds a protocol buffer.
class Message {
 public:
  void Varint(std::uint32_t field, std::uint64_t value) {
    Key(field, Wire::kVarint);
    PutVarint(value);
  }
  void Double(std::uint32_t field, double value) {
    Key(field, Wire::kFixed64);
    Put(&value, sizeof value);
  }
  void Float(std::uint32_t field, float value) {
    Key(field, Wire::kFixed32);
    Put(&value, sizeof value);
  }
  void Text(std::uint32_t field, Bytes value) {
    Key(field, Wire::kBytes);
    PutVarint(value.size());
    Put(value.data(), value.size());
  }
  void Text(std::uint32_t field, std::string_view value) {
    Text(field, std::as_bytes(std::span(value)));
  }
  void Part(std::uint32_t field, const Message& part) { Text(field, part.bytes()); }
  Bytes bytes() const { return std::as_bytes(std::span(bytes_)); }

 private:
  void Key(std::uint32_t field, Wire wire) {
    PutVarint((std::uint64_t{field} << 3U) | static_cast<std::uint64_t>(wire));
  }
  void PutVarint(std::uint64_t value) {
    for (; value >= 0x80U; value >>= 7U) bytes_ += static_cast<char>(value | 0x80U);
    bytes_ += static_cast<char>(value);
  }
  void Put(const void* data, std::size_t size) {
    bytes_.append(static_cast<const char*>(data), size);
  }

  // Not a vector: GCC 12 takes its growth for a write beyond the end.
  std::string bytes_;
};

std::vector<std::byte> AsRecord(Bytes event) {
  std::vector<std::byte> record(kHead + event.size() + kTail);
  const std::uint64_t length = event.size();
  std::memcpy(record.data(), &length, sizeof length);
  const std::uint32_t length_crc = MaskedCrc(Bytes(record).first(sizeof length));
  std::memcpy(record.data() + sizeof length, &length_crc, sizeof length_crc);
  std::memcpy(record.data() + kHead, event.data(), event.size());
  const std::uint32_t crc = MaskedCrc(event);
  std::memcpy(record.data() + kHead + event.size(), &crc, sizeof crc);
  return record;
}

/// An event of the hparams plugin.
std::vector<std::byte> AsHparamRecord(std::string_view tag, std::uint32_t kind,
                                      const Message& content, double wall_time) {
  Message data;
  data.Part(kind, content);
  Message plugin;
  plugin.Text(kPluginName, "hparams");
  plugin.Part(kPluginContent, data);
  Message metadata;
  metadata.Part(kMetadataPlugin, plugin);
  Message value;
  value.Text(kValueTag, tag);
  value.Part(kValueMetadata, metadata);
  Message summary;
  summary.Part(kSummaryValue, value);
  Message event;
  event.Double(kEventWallTime, wall_time);
  event.Part(kEventSummary, summary);
  return AsRecord(event.bytes());
}

Message StartOf(const HparamSession& session, double began) {
  Message start;
  for (const auto& [name, value] : session.hparams) {
    Message held;
    if (const bool* truth = std::get_if<bool>(&value)) held.Varint(kStructBool, *truth ? 1 : 0);
    if (const double* number = std::get_if<double>(&value)) held.Double(kStructNumber, *number);
    if (const auto* text = std::get_if<std::string>(&value)) held.Text(kStructText, *text);
    Message entry;
    entry.Text(kMapKey, name);
    entry.Part(kMapValue, held);
    start.Part(kStartHparam, entry);
  }
  start.Double(kStartTime, began);
  return start;
}

/// A member of a protocol buffer.
struct Field {
  std::uint32_t number = 0;
  Wire wire = Wire::kVarint;
  std::uint64_t value = 0;  ///< Of the three wires with a number.
  Bytes bytes;              ///< Of kBytes.

  bool Is(std::uint32_t wanted, Wire as) const { return number == wanted && wire == as; }
  double AsDouble() const { return std::bit_cast<double>(value); }
  float AsFloat() const { return std::bit_cast<float>(static_cast<std::uint32_t>(value)); }
};

/// Takes a protocol buffer apart.
class Fields {
 public:
  explicit Fields(Bytes bytes) : left_(bytes) {}

  /// Nothing at the end, and where the bytes make no sense.
  std::optional<Field> Next() {
    if (left_.empty() || bad_) return std::nullopt;
    Field field;
    const std::uint64_t key = TakeVarint();
    field.number = static_cast<std::uint32_t>(key >> 3U);
    field.wire = static_cast<Wire>(key & 7U);
    switch (field.wire) {
      case Wire::kVarint:
        field.value = TakeVarint();
        break;
      case Wire::kFixed64:
        field.value = TakeFixed(8);
        break;
      case Wire::kFixed32:
        field.value = TakeFixed(4);
        break;
      case Wire::kBytes:
        field.bytes = Take(TakeVarint());
        break;
      default:
        bad_ = true;
    }
    return bad_ ? std::nullopt : std::optional(field);
  }
  bool bad() const { return bad_; }
  bool empty() const { return left_.empty(); }

  std::uint64_t TakeVarint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const Bytes byte = Take(1);
      if (bad_) return 0;
      const auto bits = std::to_integer<std::uint64_t>(byte[0]);
      value |= (bits & 0x7fU) << shift;
      if ((bits & 0x80U) == 0) return value;
    }
    bad_ = true;
    return 0;
  }

 private:
  Bytes Take(std::uint64_t count) {
    if (count > left_.size()) bad_ = true;
    if (bad_) return {};
    const Bytes taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }
  std::uint64_t TakeFixed(std::size_t size) {
    std::uint64_t value = 0;
    const Bytes taken = Take(size);
    if (!taken.empty()) std::memcpy(&value, taken.data(), taken.size());
    return value;
  }

  Bytes left_;
  bool bad_ = false;
};

template <typename T>
std::optional<double> OnlyElement(Bytes bytes) {
  T value{};
  if (bytes.size() != sizeof value) return std::nullopt;
  std::memcpy(&value, bytes.data(), sizeof value);
  return static_cast<double>(value);
}

std::optional<double> OnlyContent(std::uint64_t type, Bytes content) {
  switch (type) {
    case kTypeFloat:
      return OnlyElement<float>(content);
    case kTypeDouble:
      return OnlyElement<double>(content);
    case kTypeInt32:
      return OnlyElement<std::int32_t>(content);
    case kTypeInt64:
      return OnlyElement<std::int64_t>(content);
    default:
      return std::nullopt;
  }
}

// Numbers come one by one or packed together.
std::optional<double> OnlyNumber(const Field& field) {
  const bool is_packed = field.wire == Wire::kBytes;
  switch (field.number) {
    case kTensorFloats:
      return is_packed ? OnlyElement<float>(field.bytes) : field.AsFloat();
    case kTensorDoubles:
      return is_packed ? OnlyElement<double>(field.bytes) : field.AsDouble();
    case kTensorInts:
    case kTensorInt64s: {
      Fields packed(field.bytes);
      const std::uint64_t value = is_packed ? packed.TakeVarint() : field.value;
      if (packed.bad() || !packed.empty()) return std::nullopt;
      return static_cast<double>(static_cast<std::int64_t>(value));
    }
    default:
      return std::nullopt;
  }
}

/// The value of a tensor of one element; nothing for any other.
std::optional<double> ReadTensor(Bytes bytes, bool& is_bad) {
  std::uint64_t type = 0;
  Bytes content;
  std::optional<double> value;
  int values = 0;
  Fields fields(bytes);
  while (const auto field = fields.Next()) {
    if (field->Is(kTensorType, Wire::kVarint)) type = field->value;
    if (field->Is(kTensorContent, Wire::kBytes)) content = field->bytes;
    const bool has_numbers = (field->number >= kTensorFloats && field->number <= kTensorInts) ||
                             field->number == kTensorInt64s;
    if (has_numbers) {
      value = OnlyNumber(*field);
      ++values;
    }
  }
  is_bad = is_bad || fields.bad();
  if (values == 0 && !content.empty()) return OnlyContent(type, content);
  return values == 1 ? value : std::nullopt;
}

struct Value {
  std::string_view tag;
  std::optional<double> number;
};

Value ReadValue(Bytes bytes, bool& is_bad) {
  Value value;
  Fields fields(bytes);
  while (const auto field = fields.Next()) {
    if (field->Is(kValueTag, Wire::kBytes))
      value.tag = {reinterpret_cast<const char*>(field->bytes.data()), field->bytes.size()};
    if (field->Is(kValueSimple, Wire::kFixed32)) value.number = field->AsFloat();
    if (field->Is(kValueTensor, Wire::kBytes)) value.number = ReadTensor(field->bytes, is_bad);
  }
  is_bad = is_bad || fields.bad();
  return value;
}

}  // namespace

std::vector<std::byte> EncodeFileVersion(double wall_time) {
  constexpr std::string_view kVersion = "brain.Event:2";
  Message event;
  event.Double(kEventWallTime, wall_time);
  event.Text(kEventFileVersion, kVersion);
  return AsRecord(event.bytes());
}

std::vector<std::byte> EncodeScalar(const std::string& tag, const Scalar& scalar) {
  Message value;
  value.Text(kValueTag, tag);
  value.Float(kValueSimple, static_cast<float>(scalar.value));
  Message summary;
  summary.Part(kSummaryValue, value);
  Message event;
  event.Double(kEventWallTime, scalar.wall_time);
  event.Varint(kEventStep, static_cast<std::uint64_t>(scalar.step));
  event.Part(kEventSummary, summary);
  return AsRecord(event.bytes());
}

std::vector<std::vector<std::byte>> EncodeHparams(const HparamSession& session, double wall_time) {
  const double began = session.began == 0 ? wall_time : session.began;
  Message end;
  end.Varint(kEndStatus, session.has_failed ? kStatusFailure : kStatusSuccess);
  end.Double(kEndTime, wall_time);
  return {AsHparamRecord("_hparams_/session_start_info", kDataStart, StartOf(session, began),
                         wall_time),
          AsHparamRecord("_hparams_/session_end_info", kDataEnd, end, wall_time)};
}

std::optional<Bytes> RecordReader::Next() {
  const Bytes left = bytes_.subspan(at_);
  if (damaged_ || left.size() < kHead) return std::nullopt;
  std::uint64_t length = 0;
  std::uint32_t length_crc = 0;
  std::memcpy(&length, left.data(), sizeof length);
  std::memcpy(&length_crc, left.data() + sizeof length, sizeof length_crc);
  damaged_ = length_crc != MaskedCrc(left.first(sizeof length));
  const std::size_t room = left.size() - kHead;
  if (damaged_ || room < kTail || length > room - kTail) return std::nullopt;
  const Bytes event = left.subspan(kHead, length);
  std::uint32_t crc = 0;
  std::memcpy(&crc, left.data() + kHead + length, sizeof crc);
  damaged_ = crc != MaskedCrc(event);
  if (damaged_) return std::nullopt;
  at_ += kHead + length + kTail;
  return event;
}

bool VisitScalars(Bytes event,
                  const std::function<void(std::string_view tag, const Scalar&)>& visit) {
  Scalar scalar;
  std::vector<Value> values;
  bool is_bad = false;
  Fields fields(event);
  while (const auto field = fields.Next()) {
    if (field->Is(kEventWallTime, Wire::kFixed64)) scalar.wall_time = field->AsDouble();
    if (field->Is(kEventStep, Wire::kVarint)) scalar.step = static_cast<std::int64_t>(field->value);
    if (!field->Is(kEventSummary, Wire::kBytes)) continue;
    Fields summary(field->bytes);
    while (const auto value = summary.Next())
      if (value->Is(kSummaryValue, Wire::kBytes)) values.push_back(ReadValue(value->bytes, is_bad));
    is_bad = is_bad || summary.bad();
  }
  if (is_bad || fields.bad()) return false;
  for (const Value& value : values) {
    if (!value.number) continue;
    scalar.value = *value.number;
    visit(value.tag, scalar);
  }
  return true;
}

}  // namespace orca::io
