// Convolutions of small images, and what comes behind them.
#pragma once

#include <cstdint>

#include "orca/core/export.h"

namespace orca::learn {

/// A convolution of images with stride 1, float32. All arrays lie as torch has them: images
/// [image][channel][row][column], weights [output channel][input channel][row][column].
struct Convolution {
  std::int64_t images, in_channels, height, width;
  std::int64_t out_channels, kernel_height, kernel_width;
  std::int64_t pad_height,
      pad_width;  ///< Zeros on each side; fewer than the kernel has rows, columns.

  std::int64_t out_height() const { return height + 2 * pad_height - kernel_height + 1; }
  std::int64_t out_width() const { return width + 2 * pad_width - kernel_width + 1; }
};

/// Whether this is what the functions below are for: small images, and channels that libraries
/// which take 8 or 16 at a time would fill up with zeros. False on processors without AVX2 and FMA.
ORCA_API bool ConvolutionPays(const Convolution& shape);

// The functions take every shape whose kernel is 2 to 7 columns wide (else they throw
// kInvalidArgument), and compute on the caller's thread. The bits of an image do not depend on what
// other images there are, nor those of a channel's weights on which channels are asked for: callers
// may cut the work among threads.

/// `output` = the convolution of `input`, plus `bias` where it is not null.
ORCA_API void Convolve(const Convolution& shape, const float* input, const float* weights,
                       const float* bias, float* output);

/// The gradient of `input`, of that of the output.
ORCA_API void ConvolutionInputGradient(const Convolution& shape, const float* output_gradient,
                                       const float* weights, float* input_gradient);

/// Output channels whose weights are learned together: cut between them.
inline constexpr std::int64_t kConvolutionChannels = 48;

/// The gradients of the weights and, where it is not null, of the bias, for the output channels
/// from `begin` (a multiple of kConvolutionChannels) to `end`.
ORCA_API void ConvolutionWeightGradient(const Convolution& shape, const float* input,
                                        const float* output_gradient, std::int64_t begin,
                                        std::int64_t end, float* weight_gradient,
                                        float* bias_gradient);

/// The largest of each 2 x 2 elements of `planes` planes, and its index in its plane, as torch's
/// max_pool2d has it: of equal ones the first, of NaNs the last. An odd last row or column is left
/// out. A plane has fewer than 2^31 elements.
ORCA_API void MaxPool2x2(std::int64_t planes, std::int64_t height, std::int64_t width,
                         const float* input, float* output, std::int64_t* indices);

}  // namespace orca::learn
