#include "kernels.h"

#include <ATen/Parallel.h>
#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/convolution_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d_with_indices_cpu_dispatch.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <array>
#include <memory>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "orca/plugin_api.h"

namespace orca::plugin {
namespace {

const OrcaKernels& Kernels() {
  static const OrcaKernels* const kernels = orca_plugin_kernels(ORCA_PLUGIN_API_VERSION);
  if (kernels == nullptr) throw std::runtime_error("liborca.so has no kernels for this plugin");
  return *kernels;
}

void CheckKernel(int code, const OrcaError& error) {
  TORCH_CHECK(code == 0, "orca: ", error.message);
}

bool IsPlain(const at::Tensor& tensor, int64_t dimensions) {
  return tensor.dim() == dimensions && tensor.scalar_type() == at::kFloat &&
         tensor.layout() == at::kStrided && tensor.is_contiguous() && tensor.numel() > 0 &&
         (dimensions != 4 || tensor.suggest_memory_format() == at::MemoryFormat::Contiguous);
}

/// What a convolution is made of, in torch's words.
struct How {
  at::IntArrayRef stride, padding, dilation;
  bool transposed;
  at::IntArrayRef output_padding;
  int64_t groups;
};

/// The engine's convolution; none when torch's is meant.
std::optional<OrcaConvolution> ShapeOf(const at::Tensor& input, const at::Tensor& weight,
                                       const How& how) {
  const auto all = [](at::IntArrayRef values, int64_t value) {
    return values.size() == 2 && values[0] == value && values[1] == value;
  };
  if (!IsPlain(input, 4) || !IsPlain(weight, 4) || how.transposed || how.groups != 1 ||
      !all(how.stride, 1) || !all(how.dilation, 1) || how.padding.size() != 2 ||
      weight.size(1) != input.size(1))
    return std::nullopt;
  const OrcaConvolution shape{input.size(0),  input.size(1),  input.size(2),
                              input.size(3),  weight.size(0), weight.size(2),
                              weight.size(3), how.padding[0], how.padding[1]};
  if (Kernels().convolution_pays(&shape) == 0) return std::nullopt;
  return shape;
}

std::array<int64_t, 4> OutputOf(const OrcaConvolution& shape) {
  return {shape.images, shape.out_channels,
          shape.height + 2 * shape.pad_height - shape.kernel_height + 1,
          shape.width + 2 * shape.pad_width - shape.kernel_width + 1};
}

/// The same for images `begin` to `end`.
OrcaConvolution Part(OrcaConvolution shape, int64_t begin, int64_t end) {
  shape.images = end - begin;
  return shape;
}

const float* BiasOf(const std::optional<at::Tensor>& bias) {
  return bias && bias->defined() ? bias->const_data_ptr<float>() : nullptr;
}

at::Tensor Convolve(const at::Tensor& input, const at::Tensor& weight,
                    const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                    at::IntArrayRef output_padding, int64_t groups) {
  const bool has_bias = bias && bias->defined();
  const auto shape =
      !has_bias || IsPlain(*bias, 1)
          ? ShapeOf(input, weight, {stride, padding, dilation, transposed, output_padding, groups})
          : std::nullopt;
  if (!shape || (has_bias && bias->size(0) != shape->out_channels))
    return at::compositeexplicitautograd::convolution(input, weight, bias, stride, padding,
                                                      dilation, transposed, output_padding, groups);
  at::Tensor output = at::empty(OutputOf(*shape), input.options());
  const int64_t in = input.stride(0);
  const int64_t out = output.stride(0);
  at::parallel_for(0, shape->images, 1, [&](int64_t begin, int64_t end) {
    OrcaError error;
    const OrcaConvolution part = Part(*shape, begin, end);
    CheckKernel(Kernels().convolve(&part, input.const_data_ptr<float>() + begin * in,
                                   weight.const_data_ptr<float>(), BiasOf(bias),
                                   output.mutable_data_ptr<float>() + begin * out, &error),
                error);
  });
  return output;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> ConvolveBackward(
    const at::Tensor& given_gradient, const at::Tensor& input, const at::Tensor& weight,
    at::OptionalIntArrayRef bias_sizes, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  const auto shape =
      given_gradient.scalar_type() == at::kFloat
          ? ShapeOf(input, weight, {stride, padding, dilation, transposed, output_padding, groups})
          : std::nullopt;
  if (!shape || given_gradient.sizes() != at::IntArrayRef(OutputOf(*shape)))
    return at::compositeexplicitautograd::convolution_backward(
        given_gradient, input, weight, bias_sizes, stride, padding, dilation, transposed,
        output_padding, groups, wanted);
  const at::Tensor gradient = given_gradient.contiguous(at::MemoryFormat::Contiguous);
  at::Tensor of_input, of_weight, of_bias;
  if (wanted[0]) {
    of_input = at::empty_like(input);
    at::parallel_for(0, shape->images, 1, [&](int64_t begin, int64_t end) {
      OrcaError error;
      const OrcaConvolution part = Part(*shape, begin, end);
      CheckKernel(Kernels().input_gradient(
                      &part, gradient.const_data_ptr<float>() + begin * gradient.stride(0),
                      weight.const_data_ptr<float>(),
                      of_input.mutable_data_ptr<float>() + begin * input.stride(0), &error),
                  error);
    });
  }
  if (wanted[1] || wanted[2]) {
    of_weight = at::empty_like(weight);
    if (wanted[2]) of_bias = at::empty({shape->out_channels}, weight.options());
    constexpr int64_t kChannels = 8;  // That a thread takes at least.
    const int64_t blocks = (shape->out_channels + kChannels - 1) / kChannels;
    at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
      OrcaError error;
      const int64_t last = std::min(end * kChannels, shape->out_channels);
      CheckKernel(Kernels().weight_gradient(
                      &*shape, input.const_data_ptr<float>(), gradient.const_data_ptr<float>(),
                      begin * kChannels, last, of_weight.mutable_data_ptr<float>(),
                      wanted[2] ? of_bias.mutable_data_ptr<float>() : nullptr, &error),
                  error);
    });
    if (!wanted[1]) of_weight = at::Tensor();
  }
  return {of_input, of_weight, of_bias};
}

std::tuple<at::Tensor, at::Tensor> MaxPool(const at::Tensor& input, at::IntArrayRef kernel,
                                           at::IntArrayRef stride, at::IntArrayRef padding,
                                           at::IntArrayRef dilation, bool ceil_mode) {
  const auto all = [](at::IntArrayRef values, int64_t value) {
    return (values.size() == 1 || values.size() == 2) && values[0] == value &&
           values.back() == value;
  };
  if (!IsPlain(input, 4) || !all(kernel, 2) || !(stride.empty() || all(stride, 2)) ||
      !all(padding, 0) || !all(dilation, 1) || ceil_mode || input.size(2) < 2 ||
      input.size(3) < 2 || input.size(2) * input.size(3) > INT32_MAX)
    return at::cpu::max_pool2d_with_indices(input, kernel, stride, padding, dilation, ceil_mode);
  const int64_t height = input.size(2);
  const int64_t width = input.size(3);
  at::Tensor output =
      at::empty({input.size(0), input.size(1), height / 2, width / 2}, input.options());
  at::Tensor indices = at::empty(output.sizes(), input.options().dtype(at::kLong));
  const int64_t planes = input.size(0) * input.size(1);
  const int64_t out = (height / 2) * (width / 2);
  const int64_t grain = std::max<int64_t>(1, at::internal::GRAIN_SIZE / (height * width));
  at::parallel_for(0, planes, grain, [&](int64_t begin, int64_t end) {
    OrcaError error;
    CheckKernel(Kernels().max_pool(end - begin, height, width,
                                   input.const_data_ptr<float>() + begin * height * width,
                                   output.mutable_data_ptr<float>() + begin * out,
                                   indices.mutable_data_ptr<int64_t>() + begin * out, &error),
                error);
  });
  return {output, indices};
}

/// Says nothing: that a kernel of torch's is replaced is what was asked for.
class Silence final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

std::unique_ptr<torch::Library>& Registered() {
  static std::unique_ptr<torch::Library> library;
  return library;
}

}  // namespace

void UseKernels(bool use) {
  if (use == (Registered() != nullptr)) return;
  Registered().reset();
  if (!use) return;
  Kernels();
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten",
                                                  c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("convolution", TORCH_FN(Convolve));
  library->impl("convolution_backward", TORCH_FN(ConvolveBackward));
  library->impl("max_pool2d_with_indices", TORCH_FN(MaxPool));
  Registered() = std::move(library);
}

}  // namespace orca::plugin
