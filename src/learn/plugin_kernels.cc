#include "orca/core/plugin_guard.h"
#include "orca/learn/convolution.h"
#include "orca/plugin_api.h"

namespace {

using orca::Guard;

orca::learn::Convolution ShapeOf(const OrcaConvolution& shape) {
  return {.images = shape.images,
          .in_channels = shape.in_channels,
          .height = shape.height,
          .width = shape.width,
          .out_channels = shape.out_channels,
          .kernel_height = shape.kernel_height,
          .kernel_width = shape.kernel_width,
          .pad_height = shape.pad_height,
          .pad_width = shape.pad_width};
}

int Convolve(const OrcaConvolution* shape, const float* input, const float* weights,
             const float* bias, float* output, OrcaError* error) {
  return Guard(error,
               [&] { orca::learn::Convolve(ShapeOf(*shape), input, weights, bias, output); });
}

int InputGradient(const OrcaConvolution* shape, const float* output_gradient, const float* weights,
                  float* input_gradient, OrcaError* error) {
  return Guard(error, [&] {
    orca::learn::ConvolutionInputGradient(ShapeOf(*shape), output_gradient, weights,
                                          input_gradient);
  });
}

int WeightGradient(const OrcaConvolution* shape, const float* input, const float* output_gradient,
                   int64_t begin, int64_t end, float* weight_gradient, float* bias_gradient,
                   OrcaError* error) {
  return Guard(error, [&] {
    orca::learn::ConvolutionWeightGradient(ShapeOf(*shape), input, output_gradient, begin, end,
                                           weight_gradient, bias_gradient);
  });
}

int MaxPool(int64_t planes, int64_t height, int64_t width, const float* input, float* output,
            int64_t* indices, OrcaError* error) {
  return Guard(error,
               [&] { orca::learn::MaxPool2x2(planes, height, width, input, output, indices); });
}

const OrcaKernels kKernels{
    .version = ORCA_PLUGIN_API_VERSION,
    .convolution_pays =
        [](const OrcaConvolution* shape) {
          return static_cast<int>(orca::learn::ConvolutionPays(ShapeOf(*shape)));
        },
    .convolve = Convolve,
    .input_gradient = InputGradient,
    .weight_gradient = WeightGradient,
    .max_pool = MaxPool,
};

}  // namespace

const OrcaKernels* orca_plugin_kernels(uint32_t version) {
  return version == ORCA_PLUGIN_API_VERSION ? &kKernels : nullptr;
}
