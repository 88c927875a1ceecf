#include "bind_learn.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind_comm.h"
#include "orca/core/error.h"
#include "orca/data/shared_block.h"
#include "orca/learn/block_exchange.h"
#include "orca/learn/commit_log.h"
#include "orca/learn/flat_layout.h"
#include "orca/learn/gradient_exchange.h"
#include "orca/learn/places.h"
#include "orca/learn/redo_log.h"
#include "orca/learn/undo_log.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace orca::bindings {
namespace {

using data::SharedBlock;
using learn::BlockExchange;
using learn::FlatLayout;
using learn::GradientExchange;
using Pointers = std::vector<std::uintptr_t>;  // 0 for none

DType TypeOf(const std::string& name) {
  for (int i = 0; i < kDTypeCount; ++i)
    if (Name(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  throw Error(Code::kInvalidArgument, "'" + name + "' is not a type that the engine knows");
}

FlatLayout MakeLayout(
    const std::vector<std::tuple<std::string, std::string, std::uint64_t, int>>& tensors) {
  std::vector<learn::FlatTensor> specs;
  for (const auto& [name, dtype, count, group] : tensors)
    specs.push_back({.name = name, .dtype = TypeOf(dtype), .count = count, .group = group});
  return FlatLayout(std::move(specs));
}

std::vector<const void*> SourcesOf(const Pointers& pointers) {
  std::vector<const void*> sources(pointers.size());
  std::ranges::transform(pointers, sources.begin(), [](std::uintptr_t at) {
    return reinterpret_cast<const void*>(at);  // NOLINT(performance-no-int-to-ptr)
  });
  return sources;
}

learn::LossKind KindOf(bool is_sum) {
  return is_sum ? learn::LossKind::kSum : learn::LossKind::kMean;
}

// (weight, loss, rows, bad_loss, bad_gradient, bad_tensor, all_leave, all_used)
nb::tuple ToTuple(const learn::StepSum& sum) {
  const bool all_used = std::ranges::all_of(sum.used, [](bool used) { return used; });
  return nb::make_tuple(sum.weight, sum.loss, sum.rows, sum.bad_loss, sum.bad_gradient,
                        sum.bad_tensor, sum.all_leave, all_used);
}

// A view of memory that keeps its block.
nb::object ViewOf(std::span<std::byte> bytes, const std::shared_ptr<SharedBlock>& block) {
  auto owner = std::make_unique<std::shared_ptr<SharedBlock>>(block);
  const nb::capsule capsule(owner.release(), [](void* pointer) noexcept {
    const std::unique_ptr<std::shared_ptr<SharedBlock>> last(
        static_cast<std::shared_ptr<SharedBlock>*>(pointer));
  });
  return nb::ndarray<nb::numpy, std::uint8_t>(bytes.data(), {bytes.size()}, capsule).cast();
}

/// An exchange and the memory that it works in.
class PyExchange {
 public:
  PyExchange(std::shared_ptr<comm::Communicator> group, const FlatLayout& layout,
             std::shared_ptr<SharedBlock> block, bool shared)
      : block_(std::move(block)), exchange_(std::move(group), layout, block_->bytes(), shared) {}

  GradientExchange& get() { return exchange_; }
  const std::shared_ptr<SharedBlock>& block() const { return block_; }

  void Collect(const Pointers& gradients) {
    const std::vector<const void*> from = SourcesOf(gradients);
    const nb::gil_scoped_release released;
    exchange_.Collect(from);
  }
  void Spread(const Pointers& gradients) const {
    std::vector<void*> to(gradients.size());
    std::ranges::transform(gradients, to.begin(), [](std::uintptr_t at) {
      return reinterpret_cast<void*>(at);  // NOLINT(performance-no-int-to-ptr)
    });
    const nb::gil_scoped_release released;
    exchange_.Spread(to);
  }
  nb::tuple Meet(double weight, double loss, std::uint64_t rows, bool leaves, bool is_sum) {
    {
      const nb::gil_scoped_release released;
      last_ = exchange_.Meet({.weight = weight, .loss = loss, .rows = rows, .leaves = leaves},
                             KindOf(is_sum));
    }
    return ToTuple(last_);
  }
  const std::vector<bool>& used() const { return last_.used; }

  std::vector<FlatLayout::Run> runs;

 private:
  std::shared_ptr<SharedBlock> block_;
  GradientExchange exchange_;
  learn::StepSum last_;
};

/// The same for blocks of rows.
class PyBlockExchange {
 public:
  PyBlockExchange(std::shared_ptr<comm::Communicator> group, const FlatLayout& layout,
                  std::shared_ptr<SharedBlock> memory, int blocks)
      : memory_(std::move(memory)), exchange_(std::move(group), layout, memory_->bytes(), blocks) {}

  BlockExchange& get() { return exchange_; }
  const std::shared_ptr<SharedBlock>& memory() const { return memory_; }

  bool Add(int block, double weight, double loss, std::uint64_t rows, const Pointers& gradients,
           bool is_sum) {
    const std::vector<const void*> from = SourcesOf(gradients);
    const nb::gil_scoped_release released;
    return exchange_.Add(block, {.weight = weight, .loss = loss, .rows = rows}, from,
                         KindOf(is_sum));
  }
  nb::tuple Meet(bool is_sum) {
    {
      const nb::gil_scoped_release released;
      last_ = exchange_.Meet(KindOf(is_sum));
    }
    return ToTuple(last_);
  }
  const std::vector<bool>& used() const { return last_.used; }

 private:
  std::shared_ptr<SharedBlock> memory_;
  BlockExchange exchange_;
  learn::StepSum last_;
};

std::vector<std::span<std::byte>> SpansOf(const std::vector<std::shared_ptr<SharedBlock>>& blocks) {
  std::vector<std::span<std::byte>> spans;
  for (const auto& block : blocks) spans.push_back(block->bytes());
  return spans;
}

/// An undo log, the memory that it works in, and what this worker saves in every step.
class PyUndoLog {
 public:
  PyUndoLog(std::shared_ptr<SharedBlock> block, learn::UndoLog::Shape shape,
            std::vector<std::shared_ptr<SharedBlock>> regions, int rank)
      : block_(std::move(block)),
        blocks_(std::move(regions)),
        log_(block_->bytes(), std::move(shape), SpansOf(blocks_)),
        rank_(rank) {}

  void SetPieces(
      const std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>>& pieces) {
    pieces_.clear();
    for (const auto& [region, offset, bytes] : pieces) pieces_.push_back({region, offset, bytes});
  }
  void Save(std::uint64_t number) {
    const nb::gil_scoped_release released;
    log_.Save(rank_, number, pieces_);
  }
  // Rows and batches of this worker, and its buffers.
  void Note(std::uint64_t number, std::uint64_t rows, std::uint64_t batches,
            const std::vector<std::pair<std::uintptr_t, std::size_t>>& buffers) {
    const std::array<std::uint64_t, 2> counts{rows, batches};
    std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(counts))};
    for (const auto& [at, bytes] : buffers)
      parts.emplace_back(
          reinterpret_cast<const std::byte*>(at),  // NOLINT(performance-no-int-to-ptr)
          bytes);
    const nb::gil_scoped_release released;
    log_.Note(rank_, number, parts);
  }
  int PutBack(std::uint64_t number) {
    const nb::gil_scoped_release released;
    return log_.PutBack(number);
  }
  nb::tuple NoteOf(int rank, std::uint64_t number) const {
    const auto note = log_.NoteOf(rank, number);
    std::array<std::uint64_t, 2> counts{};
    std::memcpy(counts.data(), note.data(), sizeof(counts));
    const auto buffers = note.subspan(sizeof(counts));
    return nb::make_tuple(counts[0], counts[1], nb::bytes(buffers.data(), buffers.size()));
  }

 private:
  std::shared_ptr<SharedBlock> block_;
  std::vector<std::shared_ptr<SharedBlock>> blocks_;
  learn::UndoLog log_;
  int rank_;
  std::vector<learn::UndoLog::Piece> pieces_;
};

/// A redo log, the memory that it works in, and what a step updates.
class PyRedoLog {
 public:
  // (type, begin, end, the regions of its states, where they begin in the layout, rule)
  using Part = std::tuple<std::string, std::size_t, std::size_t, std::vector<std::uint64_t>,
                          std::uint64_t, nb::object>;

  PyRedoLog(std::shared_ptr<SharedBlock> block, int world, std::uint64_t parts,
            std::vector<std::shared_ptr<SharedBlock>> regions)
      : block_(std::move(block)),
        blocks_(std::move(regions)),
        log_(block_->bytes(), {.world = world, .parts = parts}, SpansOf(blocks_)) {}

  void SetParts(const std::vector<Part>& parts) {
    parts_.clear();
    rules_.clear();
    for (const auto& [dtype, begin, end, regions, area, rule] : parts) {
      learn::UpdatePart part{.run = {.dtype = TypeOf(dtype), .range = {begin, end}}, .area = area};
      std::copy_n(regions.begin(), std::min(regions.size(), part.regions.size()),
                  part.regions.begin());
      parts_.push_back(part);
      rules_.push_back(rule);
    }
  }
  template <typename Exchange>
  void Update(Exchange& exchange, int rank, std::uint64_t number, double loss, std::uint64_t rows) {
    for (std::size_t i = 0; i < parts_.size(); ++i)
      parts_[i].rule = *nb::cast<const learn::UpdateRule*>(rules_[i]);
    const nb::gil_scoped_release released;
    log_.Update(rank, number, {.loss = loss, .rows = rows}, parts_, exchange.get().Joined());
  }
  std::optional<std::pair<double, std::uint64_t>> FinishStep(
      const FlatLayout& layout, const std::shared_ptr<SharedBlock>& gradients, int world,
      bool is_sum, std::uint64_t number) {
    return Finish(number,
                  GradientExchange::JoinedIn(layout, gradients->bytes(), world, KindOf(is_sum)));
  }
  std::optional<std::pair<double, std::uint64_t>> FinishBlocks(
      const FlatLayout& layout, const std::shared_ptr<SharedBlock>& memory, std::uint64_t number) {
    return Finish(number, BlockExchange::JoinedIn(layout, memory->bytes()));
  }

 private:
  std::optional<std::pair<double, std::uint64_t>> Finish(std::uint64_t number,
                                                         const learn::JoinedGradient& gradient) {
    const nb::gil_scoped_release released;
    const auto step = log_.Finish(number, gradient);
    if (!step) return std::nullopt;
    return std::pair(step->loss, step->rows);
  }

  std::shared_ptr<SharedBlock> block_;
  std::vector<std::shared_ptr<SharedBlock>> blocks_;
  learn::RedoLog log_;
  std::vector<learn::UpdatePart> parts_;
  std::vector<nb::object> rules_;
};

/// The places of a call's workers, and the memory that they are in.
class PyPlaces {
 public:
  PyPlaces(std::shared_ptr<SharedBlock> block, int world)
      : block_(std::move(block)), places_(block_->bytes(), world) {}

  void Enter(int rank, std::uint64_t number) { places_.Enter(rank, number); }
  std::optional<learn::Places::Death> Find(const std::vector<bool>& are_new) const {
    return places_.Find(are_new);
  }
  void Settle(const std::optional<learn::Places::Death>& death) { places_.Settle(death); }

 private:
  std::shared_ptr<SharedBlock> block_;
  learn::Places places_;
};

learn::UndoLog::Shape MakeShape(int world, std::uint64_t pieces, std::uint64_t buffers,
                                std::vector<std::uint64_t> regions) {
  return {.world = world,
          .pieces = pieces,
          .note = 2 * sizeof(std::uint64_t) + buffers,
          .regions = std::move(regions)};
}

void BindCommits(nb::module_& m) {
  using learn::Commit;
  nb::class_<Commit>(m, "Commit")
      .def(nb::init<>())
      .def_rw("number", &Commit::number)
      .def_rw("step", &Commit::step)
      .def_rw("epoch", &Commit::epoch)
      .def_rw("index", &Commit::index)
      .def_rw("updates", &Commit::updates)
      .def_rw("skipped", &Commit::skipped)
      .def_rw("loss_sum", &Commit::loss_sum)
      .def_rw("loss_rows", &Commit::loss_rows)
      .def_rw("last_loss", &Commit::last_loss)
      .def_rw("record", &Commit::record)
      .def_rw("record_bytes", &Commit::record_bytes)
      .def_rw("is_pending", &Commit::is_pending);
  m.attr("COMMIT_LOG_BYTES") = learn::CommitLog::kBlockSize;
  m.def(
      "write_commit",
      [](const SharedBlock& block, const Commit& commit) {
        learn::CommitLog(block.bytes()).Write(commit);
      },
      "block"_a, "commit"_a);
  m.def(
      "read_commit",
      [](const SharedBlock& block) { return learn::CommitLog(block.bytes()).Read(); }, "block"_a);
  nb::class_<learn::Places::Death>(m, "Death")
      .def_ro("rank", &learn::Places::Death::rank)
      .def_ro("place", &learn::Places::Death::place)
      .def_prop_ro("is_certain", &learn::Places::Death::IsCertain);
  nb::class_<PyPlaces>(m, "Places")
      .def(nb::init<std::shared_ptr<SharedBlock>, int>(), "block"_a, "world"_a)
      .def_static("block_size", &learn::Places::BlockSize, "world"_a)
      .def("enter", &PyPlaces::Enter, "rank"_a, "number"_a)
      .def("find", &PyPlaces::Find, "are_new"_a)
      .def("settle", &PyPlaces::Settle, "death"_a.none());
  nb::class_<PyRedoLog>(m, "RedoLog")
      .def(nb::init<std::shared_ptr<SharedBlock>, int, std::uint64_t,
                    std::vector<std::shared_ptr<SharedBlock>>>(),
           "block"_a, "world"_a, "parts"_a, "regions"_a)
      .def_static(
          "block_size",
          [](int world, std::uint64_t parts) {
            return learn::RedoLog::BlockSize({.world = world, .parts = parts});
          },
          "world"_a, "parts"_a)
      .def("set_parts", &PyRedoLog::SetParts, "parts"_a)
      .def("update", &PyRedoLog::Update<PyExchange>, "exchange"_a, "rank"_a, "number"_a, "loss"_a,
           "rows"_a)
      .def("update", &PyRedoLog::Update<PyBlockExchange>, "exchange"_a, "rank"_a, "number"_a,
           "loss"_a, "rows"_a)
      .def("finish", &PyRedoLog::FinishStep, "layout"_a, "gradients"_a, "world"_a, "is_sum"_a,
           "number"_a)
      .def("finish_blocks", &PyRedoLog::FinishBlocks, "layout"_a, "memory"_a, "number"_a);
  nb::class_<PyUndoLog>(m, "UndoLog")
      .def(
          "__init__",
          [](PyUndoLog* self, std::shared_ptr<SharedBlock> block, int rank, int world,
             std::uint64_t pieces, std::uint64_t buffers,
             std::vector<std::shared_ptr<SharedBlock>> regions, std::vector<std::uint64_t> sizes) {
            new (self)
                PyUndoLog(std::move(block), MakeShape(world, pieces, buffers, std::move(sizes)),
                          std::move(regions), rank);
          },
          "block"_a, "rank"_a, "world"_a, "pieces"_a, "buffers"_a, "regions"_a, "sizes"_a)
      .def_static(
          "block_size",
          [](int world, std::uint64_t pieces, std::uint64_t buffers,
             std::vector<std::uint64_t> sizes) {
            return learn::UndoLog::BlockSize(MakeShape(world, pieces, buffers, std::move(sizes)));
          },
          "world"_a, "pieces"_a, "buffers"_a, "sizes"_a)
      .def("set_pieces", &PyUndoLog::SetPieces, "pieces"_a)
      .def("save", &PyUndoLog::Save, "number"_a)
      .def("note", &PyUndoLog::Note, "number"_a, "rows"_a, "batches"_a, "buffers"_a)
      .def("put_back", &PyUndoLog::PutBack, "number"_a)
      .def("note_of", &PyUndoLog::NoteOf, "rank"_a, "number"_a);
}

}  // namespace

void BindLearn(nb::module_& m) {
  nb::class_<FlatLayout>(m, "FlatLayout")
      .def(
          "__init__",
          [](FlatLayout* self,
             const std::vector<std::tuple<std::string, std::string, std::uint64_t, int>>& tensors) {
            new (self) FlatLayout(MakeLayout(tensors));
          })
      .def("offset", &FlatLayout::offset, "tensor"_a)
      .def_prop_ro("size", &FlatLayout::size)
      .def(
          "runs",
          [](const FlatLayout& self, const std::vector<int>& kinds) {
            nb::list runs;
            for (const FlatLayout::Run& run : self.Runs(kinds))
              runs.append(nb::make_tuple(Name(run.dtype), run.group, run.kind, run.range.begin,
                                         run.range.end));
            return runs;
          },
          "kinds"_a)
      .def_static(
          "share",
          [](std::size_t begin, std::size_t end, int rank, int world) {
            const FlatLayout::Range share = FlatLayout::Share({begin, end}, rank, world);
            return nb::make_tuple(share.begin, share.end);
          },
          "begin"_a, "end"_a, "rank"_a, "world"_a);
  nb::class_<PyExchange>(m, "GradientExchange")
      .def("__init__",
           [](PyExchange* self, const nb::handle group, const FlatLayout& layout,
              std::shared_ptr<SharedBlock> block, bool shared) {
             new (self) PyExchange(UnwrapCommunicator(group), layout, std::move(block), shared);
           })
      .def_static(
          "block_size",
          [](const FlatLayout& layout, int world) {
            return GradientExchange::BlockSize(layout, world);
          },
          "layout"_a, "world"_a)
      .def("collect", &PyExchange::Collect, "gradients"_a)
      .def("meet", &PyExchange::Meet, "weight"_a, "loss"_a, "rows"_a, "leaves"_a, "is_sum"_a)
      .def("used", [](const PyExchange& self) { return self.used(); })
      .def(
          "set_runs",
          [](PyExchange& self, const std::vector<int>& kinds) {
            self.runs = self.get().layout().Runs(kinds);
          },
          "kinds"_a)
      .def("reduce_share",
           [](PyExchange& self) {
             const nb::gil_scoped_release released;
             self.get().ReduceShare(self.runs);
           })
      .def(
          "squares_of_share",
          [](PyExchange& self, std::optional<std::pair<double, double>> limits) {
            const nb::gil_scoped_release released;
            return self.get().SquaresOfShare(self.runs, limits);
          },
          "limits"_a.none())
      .def("reduce_all",
           [](PyExchange& self) {
             const nb::gil_scoped_release released;
             self.get().ReduceAll();
           })
      .def("spread", &PyExchange::Spread, "gradients"_a)
      .def("leave",
           [](PyExchange& self) {
             const nb::gil_scoped_release released;
             self.get().Leave();
           })
      .def("bank", [](PyExchange& self) { return ViewOf(self.get().bank(), self.block()); });
  nb::class_<PyBlockExchange>(m, "BlockExchange")
      .def("__init__",
           [](PyBlockExchange* self, const nb::handle group, const FlatLayout& layout,
              std::shared_ptr<SharedBlock> memory, int blocks) {
             new (self)
                 PyBlockExchange(UnwrapCommunicator(group), layout, std::move(memory), blocks);
           })
      .def_static(
          "memory_size",
          [](const FlatLayout& layout, int blocks, int world) {
            return BlockExchange::MemorySize(layout, blocks, world);
          },
          "layout"_a, "blocks"_a, "world"_a)
      .def_static(
          "blocks_of",
          [](int blocks, int rank, int world) {
            const BlockExchange::Blocks own = BlockExchange::BlocksOf(blocks, rank, world);
            return nb::make_tuple(own.begin, own.end);
          },
          "blocks"_a, "rank"_a, "world"_a)
      .def("add", &PyBlockExchange::Add, "block"_a, "weight"_a, "loss"_a, "rows"_a, "gradients"_a,
           "is_sum"_a)
      .def("meet", &PyBlockExchange::Meet, "is_sum"_a)
      .def("used", [](const PyBlockExchange& self) { return self.used(); })
      .def("reduce",
           [](PyBlockExchange& self) {
             const nb::gil_scoped_release released;
             self.get().Reduce();
           })
      .def(
          "squares",
          [](PyBlockExchange& self, std::optional<std::pair<double, double>> limits) {
            const nb::gil_scoped_release released;
            return self.get().Squares(limits);
          },
          "limits"_a.none())
      .def("leave",
           [](PyBlockExchange& self) {
             const nb::gil_scoped_release released;
             self.get().Leave();
           })
      .def("bank", [](PyBlockExchange& self) { return ViewOf(self.get().bank(), self.memory()); });
  BindCommits(m);
}

}  // namespace orca::bindings
