// The bytes of TensorBoard's event files: framed records of protocol buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "orca/io/event_file.h"

namespace orca::io {

/// The record that every event file begins with.
std::vector<std::byte> EncodeFileVersion(double wall_time);
std::vector<std::byte> EncodeScalar(const std::string& tag, const Scalar& scalar);
/// How the session began, and how it ended at `wall_time`: two records. TensorBoard finds out what
/// parameters there are.
std::vector<std::vector<std::byte>> EncodeHparams(const HparamSession& session, double wall_time);

/// Takes a file apart into records. Length (u64) and its checksum, the event, its checksum.
class RecordReader {
 public:
  explicit RecordReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  /// The next event that is whole; nothing at the end, and where the file is damaged.
  std::optional<std::span<const std::byte>> Next();
  bool damaged() const { return damaged_; }
  std::uint64_t offset() const { return at_; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  bool damaged_ = false;
};

/// Calls `visit` with every scalar of an event; false when the event cannot be read.
bool VisitScalars(std::span<const std::byte> event,
                  const std::function<void(std::string_view tag, const Scalar&)>& visit);

}  // namespace orca::io
