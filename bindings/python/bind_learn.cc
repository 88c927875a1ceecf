#include "bind_learn.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind_comm.h"
#include "orca/core/error.h"
#include "orca/data/shared_block.h"
#include "orca/learn/flat_layout.h"
#include "orca/learn/gradient_exchange.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace orca::bindings {
namespace {

using data::SharedBlock;
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

/// An exchange and the memory that it works in.
class PyExchange {
 public:
  PyExchange(std::shared_ptr<comm::Communicator> group, const FlatLayout& layout,
             std::shared_ptr<SharedBlock> block, bool shared)
      : block_(std::move(block)), exchange_(std::move(group), layout, block_->bytes(), shared) {}

  GradientExchange& get() { return exchange_; }
  const std::shared_ptr<SharedBlock>& block() const { return block_; }

  void Collect(const Pointers& gradients) {
    from_.resize(gradients.size());
    std::ranges::transform(gradients, from_.begin(), [](std::uintptr_t at) {
      return reinterpret_cast<const void*>(at);  // NOLINT(performance-no-int-to-ptr)
    });
    const nb::gil_scoped_release released;
    exchange_.Collect(from_);
  }
  void Spread(const Pointers& gradients) const {
    std::vector<void*> to(gradients.size());
    std::ranges::transform(gradients, to.begin(), [](std::uintptr_t at) {
      return reinterpret_cast<void*>(at);  // NOLINT(performance-no-int-to-ptr)
    });
    const nb::gil_scoped_release released;
    exchange_.Spread(to);
  }
  // (weight, loss, rows, bad_loss, bad_gradient, bad_tensor, all_leave, all_used)
  nb::tuple Meet(double weight, double loss, std::uint64_t rows, bool leaves, bool is_sum) {
    {
      const nb::gil_scoped_release released;
      last_ = exchange_.Meet({.weight = weight, .loss = loss, .rows = rows, .leaves = leaves},
                             is_sum ? learn::LossKind::kSum : learn::LossKind::kMean);
    }
    const bool all_used = std::ranges::all_of(last_.used, [](bool used) { return used; });
    return nb::make_tuple(last_.weight, last_.loss, last_.rows, last_.bad_loss, last_.bad_gradient,
                          last_.bad_tensor, last_.all_leave, all_used);
  }
  const std::vector<bool>& used() const { return last_.used; }

  std::vector<FlatLayout::Run> runs;

 private:
  std::shared_ptr<SharedBlock> block_;
  GradientExchange exchange_;
  std::vector<const void*> from_;
  learn::StepSum last_;
};

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
      .def("bank", [](PyExchange& self) {
        auto owner = std::make_unique<std::shared_ptr<SharedBlock>>(self.block());
        const nb::capsule capsule(owner.release(), [](void* pointer) noexcept {
          const std::unique_ptr<std::shared_ptr<SharedBlock>> last(
              static_cast<std::shared_ptr<SharedBlock>*>(pointer));
        });
        const auto bank = self.get().bank();
        return nb::ndarray<nb::numpy, std::uint8_t>(bank.data(), {bank.size()}, capsule).cast();
      });
}

}  // namespace orca::bindings
