// Where the tensors of a model lie in one piece of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "orca/core/dtype.h"
#include "orca/core/export.h"

namespace orca::learn {

struct FlatTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  std::uint64_t count = 0;  ///< Of elements.
  int group = 0;            ///< Of the optimizer: those of one group are updated with one setting.
};

/// The tensors of a model behind each other: sorted by type and group, otherwise in their order,
/// each beginning a cache line. What lies between two of them is never read for a value, and stays
/// zero under any optimizer that works element by element.
///
/// Never changes; any thread may use it.
class ORCA_API FlatLayout {
 public:
  /// Throws kInvalidArgument when two names are the same, or the sizes add up to too much.
  explicit FlatLayout(std::vector<FlatTensor> tensors);

  const std::vector<FlatTensor>& tensors() const { return tensors_; }
  /// Where tensor `i` begins, in bytes.
  std::size_t offset(std::size_t i) const { return offsets_[i]; }
  std::size_t bytes(std::size_t i) const { return tensors_[i].count * SizeOf(tensors_[i].dtype); }
  /// Of all, a multiple of a cache line.
  std::size_t size() const { return size_; }

  struct Range {
    std::size_t begin = 0;  ///< In bytes, at a cache line.
    std::size_t end = 0;
    std::size_t size() const { return end - begin; }
    bool operator==(const Range&) const = default;
  };
  /// Neighbours that are updated as one.
  struct Run {
    DType dtype = DType::kFloat32;
    int group = 0;
    int kind = 0;
    Range range;
  };
  /// The longest runs of tensors of one type, group and kind; `kinds` has one number a tensor, and
  /// those below 0 are left out.
  std::vector<Run> Runs(std::span<const int> kinds) const;

  /// The part of a range that worker `rank` of `world` takes: equal shares of whole cache lines.
  static Range Share(const Range& range, int rank, int world);

 private:
  std::vector<FlatTensor> tensors_;
  std::vector<std::size_t> order_;  // by place
  std::vector<std::size_t> offsets_;
  std::size_t size_ = 0;
};

}  // namespace orca::learn
