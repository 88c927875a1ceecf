// What crosses hosts instead of the values themselves.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "orca/comm/communicator.h"
#include "orca/comm/kernels.h"

namespace orca::comm {

/// Packs float32 into bfloat16 for the wire, if asked to; otherwise buffers pass as they are.
///
/// Owns the packed copies: they stay until the collective ends.
class Wire {
 public:
  explicit Wire(bool packs) : packs_(packs) {}

  /// What to send for `values`.
  ConstBytes Pack(ConstBytes values) {
    if (!packs_) return values;
    const Bytes packed = Scratch(values.size() / 2);
    PackBFloat16(reinterpret_cast<const float*>(values.data()),
                 reinterpret_cast<std::uint16_t*>(packed.data()), values.size() / sizeof(float));
    return packed;
  }
  /// Where to receive what becomes `values`.
  Bytes Place(Bytes values) { return packs_ ? Scratch(values.size() / 2) : values; }
  /// Turns what was received into `values`.
  void Unpack(ConstBytes received, Bytes values) const {
    if (!packs_) return;
    UnpackBFloat16(reinterpret_cast<const std::uint16_t*>(received.data()),
                   reinterpret_cast<float*>(values.data()), values.size() / sizeof(float));
  }
  bool packs() const { return packs_; }

 private:
  Bytes Scratch(std::size_t bytes) {
    scratch_.emplace_back(bytes);
    return scratch_.back();
  }

  bool packs_;
  std::deque<std::vector<std::byte>> scratch_;
};

}  // namespace orca::comm
