// The convolutions of one instruction set. Internal to convolution*.cc and their test.
#pragma once

#include <cstdint>

namespace orca::learn {

/// What the loops know of a convolution. Plain numbers: files compiled for a higher instruction set
/// must not instantiate inline code of shared headers, since the linker might keep that copy for
/// everybody.
struct ConvolutionLoops {
  std::int64_t in_channels, out_channels, kernel_height, kernel_width;
  std::int64_t height, width;          ///< Of an image with its zeros around it.
  std::int64_t out_height, out_width;  ///< Of its output.
};

/// Elements that are computed together.
inline constexpr std::int64_t kLanes = 8;
/// Output channels that one pass over an image computes.
inline constexpr std::int64_t kTogether = 6;
inline constexpr std::int64_t kWidestKernel = 7;

struct ConvolutionTable {
  const char* isa;

  /// The output of `channels` (at most kTogether) of the output channels of one image. `weights`:
  /// [input channel][row][column][channel]. Where the output is narrower than kLanes, so many
  /// floats behind `image` can be read.
  void (*forward)(const ConvolutionLoops& loops, std::int64_t channels, const float* image,
                  const float* weights, const float* bias, float* output);

  /// The gradient of one channel of an image without its zeros: `rows` x `columns` from
  /// (`top`, `left`) on. `gradient`: [output channel][row][lines of kLanes, zeros at the end];
  /// `weights`: [row][output channel][column]; `sums`: room for SumsSize(), of which nothing but
  /// the margins must be 0.
  void (*input)(const ConvolutionLoops& loops, const float* gradient, const float* weights,
                float* sums, std::int64_t top, std::int64_t left, std::int64_t rows,
                std::int64_t columns, float* input_gradient);

  /// Adds the gradients of the weights of `lines` * kLanes output channels over `images` images.
  /// `turned`: [image][row][column][channel], their output's gradients; `sums`: [input
  /// channel][row][column][channel].
  void (*weights)(const ConvolutionLoops& loops, std::int64_t lines, std::int64_t images,
                  const float* input, const float* turned, float* sums);

  /// Puts `channels` planes of `size` side by side, zeros behind them: [element][lines * kLanes].
  void (*turn)(std::int64_t channels, std::int64_t lines, std::int64_t size, const float* planes,
               float* turned);

  float (*sum)(std::int64_t size, const float* values);

  void (*max_pool)(std::int64_t planes, std::int64_t height, std::int64_t width, const float* input,
                   float* output, std::int64_t* indices);
};

/// Lines of channels that `weights` takes at once: as many sums as there are registers for.
constexpr std::int64_t WeightLines(std::int64_t kernel_width) {
  return kernel_width <= 3 ? 3 : kernel_width <= 6 ? 2 : 1;
}

/// Floats of a line of `sums`: zeros before it, which are also those behind the one before.
constexpr std::int64_t SumsLine(const ConvolutionLoops& loops) {
  return (loops.out_width + kLanes - 1) / kLanes * kLanes + kLanes;
}
constexpr std::int64_t SumsSize(const ConvolutionLoops& loops) {
  return loops.kernel_height * loops.kernel_width * loops.out_height * SumsLine(loops) + kLanes;
}

namespace baseline {
extern const ConvolutionTable kConvolutions;
}
#if defined(__x86_64__)
namespace avx2 {
extern const ConvolutionTable kConvolutions;
}
#endif

/// The fastest that this machine runs last.
std::int64_t RunnableConvolutions();
const ConvolutionTable& ConvolutionsAt(std::int64_t index);

}  // namespace orca::learn
