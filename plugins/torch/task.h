// One torch.distributed call on its way to the engine: tensors checked and turned into buffers.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>

#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "engine.h"
#include "work.h"

namespace orca::plugin {

/// One call of the engine.
struct Step {
  OrcaCall call{};
  c10::SmallVector<OrcaBuffer, 4> inputs;
  c10::SmallVector<OrcaBuffer, 4> outputs;

  /// The call with its buffers in place.
  const OrcaCall* Ready() {
    call.inputs = inputs.data();
    call.input_count = inputs.size();
    call.outputs = outputs.data();
    call.output_count = outputs.size();
    return &call;
  }
};

/// Collects what a call needs. Tensors that are not contiguous go through a copy, outputs are
/// copied back at the end.
///
/// Data-moving operations take any type; reductions take the engine's types, and complex ones as
/// pairs of reals.
struct Task {
  c10d::OpType type;
  const char* name;
  bool async;  ///< The call outlives the caller's tensors, so they are held.
  std::chrono::milliseconds timeout;
  c10::SmallVector<Step, 1> steps{};
  Rest rest{};
  std::vector<at::Tensor> outputs{};  ///< What result() and the future give.
  std::vector<std::vector<at::Tensor>>
      nested{};  ///< Instead of outputs, where it is a list of lists.

  /// Adds a call of the engine and returns it. `dtype` comes from MoveType or ReduceType.
  Step& Add(Op op, DType dtype);
  Step& Add(Op op, DType dtype, const c10d::ReduceOp& reduce);

  OrcaBuffer In(const at::Tensor& tensor);
  OrcaBuffer Out(const at::Tensor& tensor);
  OrcaBuffer InOut(const at::Tensor& tensor);

  /// The engine's type for `tensor`; bytes where it has none.
  DType MoveType(const at::Tensor& tensor) const;
  /// As above; throws where the engine cannot reduce.
  DType ReduceType(const at::Tensor& tensor, const c10d::ReduceOp& reduce) const;

  /// Throws unless the tensor is dense and on the CPU.
  void CheckDense(const at::Tensor& tensor) const;
  void CheckOne(const std::vector<at::Tensor>& tensors, const char* what) const;
  void CheckCount(std::size_t count, std::size_t expected, const char* what) const;
  void CheckRoot(std::int64_t root, int world) const;
  void CheckSameType(const at::Tensor& tensor, const at::Tensor& like) const;
  [[noreturn]] void Invalid(const std::string& message) const { ThrowInvalid(name, message); }
};

}  // namespace orca::plugin
