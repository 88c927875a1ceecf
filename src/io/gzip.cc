#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <limits>

#include "io/array_parsers.h"
#include "orca/core/error.h"
#include "orca/core/host.h"

namespace orca::io {
namespace {

constexpr std::size_t kFirstGuess = 4;  // times the packed bytes
constexpr int kGzipWindow = 15 + 16;    // the largest window; a gzip header is expected
constexpr std::size_t kMostAtOnce = std::numeric_limits<uInt>::max();

/// Owner of an unpacker.
class Inflater {
 public:
  Inflater() {
    if (::inflateInit2(&stream_, kGzipWindow) != Z_OK)
      throw Error(Code::kResourceExhausted, "no memory for unpacking");
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { ::inflateEnd(&stream_); }

  z_stream& stream() { return stream_; }

 private:
  z_stream stream_{};
};

void Grow(std::vector<std::byte>& out, const Path& path) {
  CheckMemoryFor(out.size(), "unpacking " + path.string());
  out.resize(2 * out.size());
}

}  // namespace

bool IsGzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

FileView Unzip(const Path& path, std::span<const std::byte> bytes) {
  Inflater inflater;
  z_stream& stream = inflater.stream();
  const std::size_t guess = std::max<std::size_t>(kFirstGuess * bytes.size(), 64);
  CheckMemoryFor(guess, "unpacking " + path.string());
  std::vector<std::byte> out(guess);
  std::size_t used = 0;
  std::size_t made = 0;
  while (true) {
    if (made == out.size()) Grow(out, path);
    // zlib only reads the input; its type comes from before const.
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data() + used));
    stream.avail_in = static_cast<uInt>(std::min(bytes.size() - used, kMostAtOnce));
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + made);
    stream.avail_out = static_cast<uInt>(std::min(out.size() - made, kMostAtOnce));
    const uInt input = stream.avail_in;
    const uInt room = stream.avail_out;
    const int state = ::inflate(&stream, Z_NO_FLUSH);
    used += input - stream.avail_in;
    made += room - stream.avail_out;
    if (state == Z_STREAM_END) {
      if (used == bytes.size()) break;
      // Files may be packed one behind the other.
      if (::inflateReset(&stream) != Z_OK) ThrowDamagedArray(path, "it cannot be unpacked");
      continue;
    }
    if (state == Z_OK && used < bytes.size()) continue;
    if (state == Z_OK && stream.avail_out == 0) continue;  // more may come of what was read
    ThrowDamagedArray(path, fmt::format("it cannot be unpacked beyond offset {}", used));
  }
  out.resize(made);
  return ViewOf(std::move(out));
}

}  // namespace orca::io
