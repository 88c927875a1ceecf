#include "orca/learn/block_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "learn/finite_copy.h"
#include "orca/comm/kernels.h"
#include "orca/core/error.h"

namespace orca::learn {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPiece = 16 << 10;  // Bytes; one for each level of the tree stay in a cache.
constexpr std::size_t kMostNodes = 64;    // Of one worker: two for each level of the highest tree.
constexpr int kMostBlocks = 1 << 20;

std::size_t RoundUp(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

void Join(DType dtype, std::span<const std::byte* const> from, std::span<const double> factors,
          std::byte* to, std::size_t bytes) {
  comm::Reduce({.dtype = dtype, .op = comm::ReduceOp::kPreMulSum, .factors = factors}, from,
               {&to, 1}, bytes / SizeOf(dtype));
}

void Add(DType dtype, const std::byte* a, const std::byte* b, std::byte* to, std::size_t bytes) {
  const std::array<const std::byte*, 2> from{a, b};
  comm::Reduce({.dtype = dtype}, from, {&to, 1}, bytes / SizeOf(dtype));
}

}  // namespace

/// What is known of a block; one byte a tensor follows it.
struct alignas(kLine) BlockExchange::Slot {
  double weight;
  double loss;
  std::uint64_t rows;
  std::int64_t bad_tensor;
};

/// Where the parts of the memory begin, behind the joined gradient.
struct BlockExchange::Places {
  std::size_t squares = 0;
  std::size_t slots = 0;
  std::size_t slot = 0;  // Bytes of one.
  std::size_t nodes = 0;
  std::size_t banks = 0;
  std::size_t banks_each = 0;  // Of a worker.
  std::size_t end = 0;
};

BlockExchange::Blocks BlockExchange::BlocksOf(int blocks, int rank, int world) {
  const int each = blocks / world;
  const int more = blocks % world;
  const int begin = rank * each + std::min(rank, more);
  return {.begin = begin, .end = begin + each + (rank < more ? 1 : 0)};
}

bool BlockExchange::AreSiblings(const Node& left, const Node& right) {
  return left.size == right.size && left.begin + left.size == right.begin &&
         left.begin % (2 * left.size) == 0;
}

// The most sums that one of the workers has at a time.
int BlockExchange::MostBanks(int blocks, int world) {
  std::size_t most = 1;
  for (int rank = 0; rank < world; ++rank) {
    const Blocks own = BlocksOf(blocks, rank, world);
    std::vector<Node> nodes;
    for (int block = own.begin; block < own.end; ++block) {
      const Node leaf{.begin = block};
      // A block whose neighbour was there before is added to it at once.
      const bool joins = !nodes.empty() && AreSiblings(nodes.back(), leaf);
      nodes.push_back(leaf);
      most = std::max(most, nodes.size() - (joins ? 1 : 0));
      while (nodes.size() > 1 && AreSiblings(nodes[nodes.size() - 2], nodes.back())) {
        nodes.pop_back();
        nodes.back().size *= 2;
      }
    }
  }
  return static_cast<int>(most);
}

std::vector<BlockExchange::Piece> BlockExchange::PiecesOf(const FlatLayout& layout) {
  std::vector<Piece> pieces;
  // Groups do not matter, nor do workers.
  for (const FlatLayout::Run& run : layout.Runs(std::vector<int>(layout.tensors().size(), 0)))
    for (std::size_t at = run.range.begin; at < run.range.end; at += kPiece)
      pieces.push_back({run.dtype, {at, std::min(at + kPiece, run.range.end)}});
  return pieces;
}

BlockExchange::Places BlockExchange::PlacesOf(const FlatLayout& layout, int blocks, int world) {
  if (blocks < world || blocks > kMostBlocks)
    throw Error(Code::kInvalidArgument,
                fmt::format("{} workers for {} blocks; give each worker one, and at most {} in all",
                            world, blocks, kMostBlocks));
  const auto workers = static_cast<std::size_t>(world);
  Places places;
  places.squares = layout.size();
  places.slots = places.squares + RoundUp(PiecesOf(layout).size() * sizeof(double));
  places.slot = sizeof(Slot) + RoundUp(layout.tensors().size());
  places.nodes = places.slots + static_cast<std::size_t>(blocks) * places.slot;
  places.banks = places.nodes + RoundUp(workers * kMostNodes * sizeof(Node));
  places.banks_each = static_cast<std::size_t>(MostBanks(blocks, world));
  places.end = places.banks + workers * places.banks_each * layout.size();
  return places;
}

std::size_t BlockExchange::MemorySize(const FlatLayout& layout, int blocks, int world) {
  return PlacesOf(layout, blocks, world).end;
}

BlockExchange::BlockExchange(std::shared_ptr<comm::Communicator> group, FlatLayout layout,
                             std::span<std::byte> memory, int blocks)
    : group_(std::move(group)),
      layout_(std::move(layout)),
      memory_(memory),
      blocks_(blocks),
      own_(BlocksOf(blocks, group_->rank(), group_->world())),
      next_(own_.begin),
      places_(std::make_unique<Places>(PlacesOf(layout_, blocks, group_->world()))),
      pieces_(PiecesOf(layout_)) {
  if (memory_.size() < places_->end)
    throw Error(Code::kInvalidArgument, fmt::format("the memory has {} bytes; {} are needed",
                                                    memory_.size(), places_->end));
  for (const FlatTensor& tensor : layout_.tensors())
    if (!comm::Supports(comm::ReduceOp::kPreMulSum, tensor.dtype))
      throw Error(Code::kInvalidArgument,
                  fmt::format("'{}' is of type {}; only floating-point tensors have gradients",
                              tensor.name, Name(tensor.dtype)));
  const auto leaves = std::bit_ceil(static_cast<std::size_t>(blocks_));
  known_.resize(2 * leaves);
  sums_.resize(2 * leaves);
  buffers_.resize(kPiece * static_cast<std::size_t>(std::bit_width(leaves)));
}

BlockExchange::~BlockExchange() = default;

BlockExchange::Slot& BlockExchange::SlotOf(int block) const {
  std::byte* const at =
      memory_.data() + places_->slots + static_cast<std::size_t>(block) * places_->slot;
  return *std::launder(reinterpret_cast<Slot*>(at));
}

std::span<std::byte> BlockExchange::UsedIn(int block) const {
  auto* const slot = reinterpret_cast<std::byte*>(&SlotOf(block));
  return {slot + sizeof(Slot), layout_.tensors().size()};
}

std::span<BlockExchange::Node> BlockExchange::NodesOf(int rank) const {
  std::byte* const at =
      memory_.data() + places_->nodes + static_cast<std::size_t>(rank) * kMostNodes * sizeof(Node);
  return {std::launder(reinterpret_cast<Node*>(at)), kMostNodes};
}

std::span<double> BlockExchange::squares() const {
  std::byte* const at = memory_.data() + places_->squares;
  return {std::launder(reinterpret_cast<double*>(at)), pieces_.size()};
}

std::byte* BlockExchange::Bank(int rank, int number) const {
  const std::size_t index =
      static_cast<std::size_t>(rank) * places_->banks_each + static_cast<std::size_t>(number);
  return memory_.data() + places_->banks + index * layout_.size();
}

int BlockExchange::FreeBank() const {
  int bank = 0;
  const auto has = [&](const Node& node) { return node.bank == bank; };
  while (std::ranges::any_of(nodes_, has)) ++bank;
  return bank;
}

bool BlockExchange::Add(int block, const StepPart& part, std::span<const void* const> gradients,
                        LossKind kind) {
  if (block < next_ || block >= own_.end)
    throw Error(Code::kInvalidArgument,
                fmt::format("block {} was added; rank {} has those from {} to {}, in this order",
                            block, group_->rank(), next_, own_.end - 1));
  while (next_ < block) Miss();
  const bool counts = part.weight != 0.0;
  if (counts && gradients.size() != layout_.tensors().size())
    throw Error(Code::kInvalidArgument,
                fmt::format("{} gradients for {} tensors; give one each, or null", gradients.size(),
                            layout_.tensors().size()));
  Slot& slot = SlotOf(block);
  slot = {.weight = part.weight, .loss = part.loss, .rows = part.rows, .bad_tensor = -1};
  Node leaf{.begin = block};
  if (counts) {
    for (std::size_t i = 0; i < gradients.size(); ++i)
      UsedIn(block)[i] = std::byte{gradients[i] != nullptr};
    const bool adds =
        !nodes_.empty() && nodes_.back().bank >= 0 && AreSiblings(nodes_.back(), leaf);
    const int bank = adds ? nodes_.back().bank : FreeBank();
    slot.bad_tensor = Collect(gradients, kind == LossKind::kSum ? 1.0 : part.weight,
                              Bank(group_->rank(), bank), adds);
    if (!adds) leaf.bank = bank;
  }
  Push(leaf);
  ++next_;
  return !counts || (slot.bad_tensor < 0 && std::isfinite(part.loss));
}

// A block that has no rows.
void BlockExchange::Miss() {
  if (next_ < blocks_) SlotOf(next_) = {.bad_tensor = -1};
  Push({.begin = next_++});
}

// Writes or adds a block's gradients to a bank; returns the first tensor that is not finite, or -1.
std::int64_t BlockExchange::Collect(std::span<const void* const> gradients, double factor,
                                    std::byte* bank, bool adds) const {
  // What a tensor without a gradient adds: a zero, as the tree would.
  static constexpr std::array<std::byte, kPiece> kZeros{};
  std::int64_t bad = -1;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const DType dtype = layout_.tensors()[i].dtype;
    const auto* const from = static_cast<const std::byte*>(gradients[i]);
    bool finite = true;
    for (std::size_t at = 0; at < layout_.bytes(i); at += kPiece) {
      const std::size_t bytes = std::min(kPiece, layout_.bytes(i) - at);
      std::byte* const to = bank + layout_.offset(i) + at;
      const std::byte* const source = from == nullptr ? kZeros.data() : from + at;
      const double weight = from == nullptr ? 1.0 : factor;
      if (adds) {
        Join(dtype, std::array{static_cast<const std::byte*>(to), source}, std::array{1.0, weight},
             to, bytes);
      } else {
        Join(dtype, std::array{source}, std::array{weight}, to, bytes);
      }
      finite = AllFinite(dtype, std::span(to, bytes)) && finite;
    }
    if (!finite && bad < 0) bad = static_cast<std::int64_t>(i);
  }
  return bad;
}

// Puts a node behind the others, and makes one of two as long as they are the halves of a larger.
void BlockExchange::Push(Node node) {
  nodes_.push_back(node);
  while (nodes_.size() > 1 && AreSiblings(nodes_[nodes_.size() - 2], nodes_.back())) {
    const Node right = nodes_.back();
    nodes_.pop_back();
    Node& left = nodes_.back();
    left.size *= 2;
    if (right.bank < 0) continue;
    if (left.bank < 0) {
      left.bank = right.bank;
      continue;
    }
    std::byte* const to = Bank(group_->rank(), left.bank);
    const std::byte* const from = Bank(group_->rank(), right.bank);
    for (const Piece& piece : pieces_)
      learn::Add(piece.dtype, to + piece.range.begin, from + piece.range.begin,
                 to + piece.range.begin, piece.range.size());
  }
}

StepSum BlockExchange::Meet(LossKind kind) {
  // Behind the last block nobody has any: a tree's width is a power of two.
  const bool is_last = own_.end == blocks_;
  const int end =
      is_last ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(blocks_))) : own_.end;
  while (next_ < end) Miss();
  const std::span<Node> told = NodesOf(group_->rank());
  std::ranges::copy(nodes_, told.begin());
  told[nodes_.size()] = {.size = 0};
  nodes_.clear();
  next_ = own_.begin;
  group_->Barrier();
  known_.assign(known_.size(), false);
  const std::size_t leaves = known_.size() / 2;
  for (int rank = 0; rank < group_->world(); ++rank) {
    for (const Node& node : NodesOf(rank)) {
      if (node.size == 0) break;
      const std::size_t number =
          (leaves + static_cast<std::size_t>(node.begin)) / static_cast<std::size_t>(node.size);
      known_[number] = true;
      sums_[number] = node.bank < 0 ? nullptr : Bank(rank, node.bank);
    }
  }
  return SumOf(kind);
}

// From the first block to the last, whoever has them.
StepSum BlockExchange::SumOf(LossKind kind) {
  StepSum sum{.all_leave = false};
  sum.used.assign(layout_.tensors().size(), false);
  int rank = 0;
  for (int block = 0; block < blocks_; ++block) {
    while (block >= BlocksOf(blocks_, rank, group_->world()).end) ++rank;
    const Slot& slot = SlotOf(block);
    sum.rows += slot.rows;
    if (slot.weight == 0.0) continue;
    sum.weight += slot.weight;
    if (sum.bad_loss < 0 && !std::isfinite(slot.loss)) sum.bad_loss = rank;
    if (sum.bad_gradient < 0 && slot.bad_tensor >= 0) {
      sum.bad_gradient = rank;
      sum.bad_tensor = static_cast<int>(slot.bad_tensor);
    }
    for (std::size_t i = 0; i < sum.used.size(); ++i)
      if (UsedIn(block)[i] != std::byte{0}) sum.used[i] = true;
  }
  for (int block = 0; block < blocks_; ++block) {
    const Slot& slot = SlotOf(block);
    if (slot.weight == 0.0) continue;
    sum.loss += (kind == LossKind::kSum ? 1.0 : slot.weight / sum.weight) * slot.loss;
  }
  factor_ = kind == LossKind::kSum || sum.weight == 0.0 ? 1.0 : 1.0 / sum.weight;
  return sum;
}

std::span<const BlockExchange::Piece> BlockExchange::OwnPieces() const {
  const auto border = [&](int rank) {
    return pieces_.size() * static_cast<std::size_t>(rank) /
           static_cast<std::size_t>(group_->world());
  };
  const std::size_t begin = border(group_->rank());
  return std::span(pieces_).subspan(begin, border(group_->rank() + 1) - begin);
}

// The sum of a node's blocks, or null when none of them has a gradient. It is in some worker's
// bank, or in the buffer `free`; those behind it are written over.
const std::byte* BlockExchange::SumOf(std::size_t node, const Piece& piece, std::size_t free) {
  if (known_[node]) return sums_[node] == nullptr ? nullptr : sums_[node] + piece.range.begin;
  std::byte* const to = buffers_.data() + free * kPiece;
  const std::byte* const left = SumOf(2 * node, piece, free);
  const std::byte* const right = SumOf(2 * node + 1, piece, left == to ? free + 1 : free);
  if (left == nullptr) return right;
  if (right == nullptr) return left;
  learn::Add(piece.dtype, left, right, to, piece.range.size());
  return to;
}

void BlockExchange::Reduce() {
  for (const Piece& piece : OwnPieces()) {
    std::byte* const to = memory_.data() + piece.range.begin;
    const std::byte* const sum = SumOf(1, piece, 0);
    if (sum == nullptr) {
      std::memset(to, 0, piece.range.size());
    } else {
      Join(piece.dtype, std::array{sum}, std::array{factor_}, to, piece.range.size());
    }
  }
  group_->Barrier();
}

double BlockExchange::Squares(std::optional<std::pair<double, double>> limits) {
  const std::span<const Piece> own = OwnPieces();
  for (const Piece& piece : own) {
    double sum = 0.0;
    const auto add = [&]<typename T>(T) {
      const auto* const values = reinterpret_cast<const T*>(memory_.data() + piece.range.begin);
      for (std::size_t i = 0; i < piece.range.size() / sizeof(T); ++i) {
        auto value = static_cast<double>(values[i]);
        if (limits) value = std::clamp(value, limits->first, limits->second);
        sum += value * value;
      }
    };
    if (piece.dtype == DType::kFloat64) {
      add(double{});
    } else if (piece.dtype == DType::kFloat32) {
      add(float{});
    } else {
      throw Error(Code::kInvalidArgument,
                  fmt::format("squares of {} are not known; give float32", Name(piece.dtype)));
    }
    squares()[static_cast<std::size_t>(&piece - pieces_.data())] = sum;
  }
  group_->Barrier();
  double total = 0.0;
  for (const double square : squares()) total += square;
  return total;
}

void BlockExchange::Leave() { group_->Barrier(); }

JoinedGradient BlockExchange::JoinedIn(const FlatLayout& layout,
                                       std::span<const std::byte> memory) {
  if (memory.size() < layout.size())
    throw Error(Code::kInvalidArgument, fmt::format("the memory has {} bytes; {} are needed",
                                                    memory.size(), layout.size()));
  return {.banks = {memory.data()}, .factors = {1.0}};
}

}  // namespace orca::learn
