// How workers make one gradient whose bits do not depend on their number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "orca/comm/communicator.h"
#include "orca/core/export.h"
#include "orca/learn/flat_layout.h"
#include "orca/learn/gradient_exchange.h"
#include "orca/learn/redo_log.h"

namespace orca::learn {

/// Joins the gradients of the blocks of a step's rows, on one machine.
///
/// The rows of a step are cut into a number of blocks that does not depend on the workers. Each
/// worker has some neighbours, and gives the gradient of one block after the other. They are added
/// along one binary tree over all blocks, a node of which has blocks from a multiple of its size
/// on: a worker adds up what lies in whole nodes of its own, and the rest is added when all have
/// met. So every sum is one of the same two numbers, whoever has which block, and a worker keeps
/// at most two sums for each level of the tree.
///
/// A step of every worker is: Add for its blocks in ascending order (those without rows may be left
/// out), Meet, Reduce, then everybody may read the bank, and Leave. Not thread-safe: one thread
/// drives it.
class ORCA_API BlockExchange {
 public:
  struct Blocks {
    int begin = 0;
    int end = 0;
    bool operator==(const Blocks&) const = default;
  };

  /// The blocks of a worker: the first `blocks % world` workers have one more.
  static Blocks BlocksOf(int blocks, int rank, int world);
  /// The bytes of the memory that the workers share.
  static std::size_t MemorySize(const FlatLayout& layout, int blocks, int world);

  /// `memory` is zeroed and mapped by all workers; it must live as long as the exchange. Throws
  /// kInvalidArgument when it is too small, when a worker would have no block, or for tensors that
  /// are not of a floating-point type.
  BlockExchange(std::shared_ptr<comm::Communicator> group, FlatLayout layout,
                std::span<std::byte> memory, int blocks);
  ~BlockExchange();

  /// The blocks of this worker.
  Blocks own() const { return own_; }

  /// Adds the gradient of every tensor of a block, null where there is none. `part.leaves` does not
  /// matter; with a weight of 0 only the rows count. Says whether loss and gradients are finite.
  /// Throws kInvalidArgument for a block that is not this worker's next.
  bool Add(int block, const StepPart& part, std::span<const void* const> gradients,
           LossKind kind = LossKind::kMean);
  /// Waits for all workers; everybody gets the same sum, with the same bits for any number of them.
  StepSum Meet(LossKind kind = LossKind::kMean);
  /// Makes the joined gradient, each worker a part of it, and waits for all of them.
  void Reduce();
  /// After Reduce, on all workers: the sum of the squares of all elements, each held between the
  /// limits if there are any. Its bits are the same for any number of workers, too.
  double Squares(std::optional<std::pair<double, double>> limits);
  /// Waits for all workers: after it, the next step may begin.
  void Leave();

  /// After Reduce: the joined gradient, layout().size() bytes that all workers share.
  std::span<std::byte> bank() const { return memory_.first(layout_.size()); }
  /// The same as the only source of an update.
  JoinedGradient Joined() const { return JoinedIn(layout_, memory_); }
  /// The same, of memory whose workers are gone: whole if one of them had begun to use it.
  static JoinedGradient JoinedIn(const FlatLayout& layout, std::span<const std::byte> memory);
  const FlatLayout& layout() const { return layout_; }

 private:
  struct Slot;
  struct Places;
  /// Of the tree: `size` blocks from `begin` on, and the bank that has their sum; -1: none of them
  /// has a gradient.
  struct Node {
    std::int32_t begin = 0;
    std::int32_t size = 1;
    std::int32_t bank = -1;
  };
  /// A part of the layout that one worker reduces.
  struct Piece {
    DType dtype = DType::kFloat32;
    FlatLayout::Range range;
  };

  static std::vector<Piece> PiecesOf(const FlatLayout& layout);
  static bool AreSiblings(const Node& left, const Node& right);
  static int MostBanks(int blocks, int world);
  static Places PlacesOf(const FlatLayout& layout, int blocks, int world);
  Slot& SlotOf(int block) const;
  std::span<std::byte> UsedIn(int block) const;
  std::span<Node> NodesOf(int rank) const;
  std::span<double> squares() const;
  std::byte* Bank(int rank, int number) const;
  std::span<const Piece> OwnPieces() const;
  int FreeBank() const;
  std::int64_t Collect(std::span<const void* const> gradients, double factor, std::byte* bank,
                       bool adds) const;
  void Miss();
  void Push(Node node);
  StepSum SumOf(LossKind kind);
  const std::byte* SumOf(std::size_t node, const Piece& piece, std::size_t free);

  std::shared_ptr<comm::Communicator> group_;
  FlatLayout layout_;
  std::span<std::byte> memory_;
  int blocks_;
  Blocks own_;
  int next_ = 0;  // the first block that was not added
  std::unique_ptr<const Places> places_;
  std::vector<Node> nodes_;  // this worker's sums, from left to right
  std::vector<Piece> pieces_;
  double factor_ = 1.0;  // of the joined sum
  // By the number of a node, the root being 1 and the halves of n 2n and 2n + 1: whether some
  // worker has its sum, and where.
  std::vector<bool> known_;
  std::vector<const std::byte*> sums_;
  std::vector<std::byte> buffers_;  // a piece for each level of the tree
};

}  // namespace orca::learn
