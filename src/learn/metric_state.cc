#include "learn/metric_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "orca/core/error.h"

namespace orca::learn {
namespace {

// Layout: magic, version, length of the name, the name; then what the metric writes.
constexpr std::uint32_t kMagic = 0x54454d4fU;  // "OMET"
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kMaxName = 64;

}  // namespace

StateWriter::StateWriter(std::string_view name) {
  Put(kMagic);
  Put(kVersion);
  Put(static_cast<std::uint64_t>(name.size()));
  PutAll(std::span<const char>(name));
}

void StateWriter::Append(std::span<const std::byte> bytes) {
  const std::size_t end = bytes_.size();
  bytes_.resize(end + bytes.size());
  if (!bytes.empty()) std::memcpy(bytes_.data() + end, bytes.data(), bytes.size());
}

StateReader::StateReader(std::string_view name, std::span<const std::byte> bytes)
    : name_(name), left_(bytes) {
  if (Get<std::uint32_t>() != kMagic) Refuse("they do not begin like one");
  const auto version = Get<std::uint32_t>();
  if (version != kVersion)
    Refuse(fmt::format("they have format {}, this release reads {}", version, kVersion));
  const auto length = Get<std::uint64_t>();
  if (length > kMaxName) Refuse("the name is too long");
  std::string written(length, '\0');
  GetAll(std::span<char>(written));
  if (written == name) return;
  std::ranges::replace_if(
      written, [](char c) { return c < ' ' || c > '~'; }, '?');
  Refuse(fmt::format("they are of '{}'; merge metrics of one name", written));
}

std::span<const std::byte> StateReader::TakeBytes(std::size_t count) {
  if (count > left_.size())
    Refuse(fmt::format("they end {} bytes too early", count - left_.size()));
  const auto taken = left_.first(count);
  left_ = left_.subspan(count);
  return taken;
}

void StateReader::Finish() const {
  if (!left_.empty()) Refuse(fmt::format("{} bytes follow its end", left_.size()));
}

void StateReader::Refuse(std::string_view why) const {
  throw Error(Code::kInvalidArgument,
              fmt::format("the bytes are not a state of the metric '{}': {}", name_, why));
}

std::uint64_t AddCounts(std::uint64_t a, std::uint64_t b, const StateReader& reader) {
  if (a > ~b) reader.Refuse("its counts are beyond 64 bits");
  return a + b;
}

}  // namespace orca::learn
