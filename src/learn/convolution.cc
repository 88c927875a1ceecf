#include "orca/learn/convolution.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <vector>

#include "learn/convolution_table.h"
#include "orca/comm/kernels.h"
#include "orca/core/error.h"

namespace orca::learn {
namespace {

using Index = std::int64_t;

// Floats that one channel's gradient is put together in: beyond, they would leave the caches.
constexpr Index kMostSums = 64 << 10;

void Check(const Convolution& shape) {
  const auto is_kernel = [](Index kernel, Index pad) { return pad >= 0 && pad < kernel; };
  if (std::min({shape.images, shape.in_channels, shape.height, shape.width, shape.out_channels,
                shape.out_height(), shape.out_width()}) < 1 ||
      !is_kernel(shape.kernel_height, shape.pad_height) ||
      !is_kernel(shape.kernel_width, shape.pad_width) || shape.kernel_width < 2 ||
      shape.kernel_width > kWidestKernel)
    throw Error(
        Code::kInvalidArgument,
        fmt::format("a convolution of {} x {} x {} x {} with {} kernels of {} x {} and {} x "
                    "{} zeros is none of these; kernels are 2 to {} columns wide, no larger "
                    "than the image with its zeros, and larger than the zeros at a side",
                    shape.images, shape.in_channels, shape.height, shape.width, shape.out_channels,
                    shape.kernel_height, shape.kernel_width, shape.pad_height, shape.pad_width,
                    kWidestKernel));
}

ConvolutionLoops LoopsOf(const Convolution& shape) {
  return {.in_channels = shape.in_channels,
          .out_channels = shape.out_channels,
          .kernel_height = shape.kernel_height,
          .kernel_width = shape.kernel_width,
          .height = shape.height + 2 * shape.pad_height,
          .width = shape.width + 2 * shape.pad_width,
          .out_height = shape.out_height(),
          .out_width = shape.out_width()};
}

/// Images with zeros around them, where they have some.
class Padded {
 public:
  /// With `slack`, so many floats behind the last image can be read.
  Padded(const Convolution& shape, Index most, Index slack)
      : shape_(shape),
        is_needed_(shape.pad_height > 0 || shape.pad_width > 0 || slack > 0),
        plane_((shape.height + 2 * shape.pad_height) * (shape.width + 2 * shape.pad_width)),
        memory_(is_needed_ ? static_cast<std::size_t>(most * shape.in_channels * plane_ + slack)
                           : 0) {}

  /// `images` of them, from number `first` on.
  const float* At(const float* input, Index first, Index images) {
    const Index own = shape_.height * shape_.width;
    const float* from = input + first * shape_.in_channels * own;
    if (!is_needed_) return from;
    const Index width = shape_.width + 2 * shape_.pad_width;
    for (Index plane = 0; plane < images * shape_.in_channels; ++plane) {
      float* to = memory_.data() + plane * plane_ + shape_.pad_height * width + shape_.pad_width;
      for (Index row = 0; row < shape_.height; ++row, from += shape_.width, to += width)
        std::copy_n(from, shape_.width, to);
    }
    return memory_.data();
  }

 private:
  const Convolution& shape_;
  bool is_needed_;
  Index plane_;
  std::vector<float> memory_;
};

const ConvolutionTable& Fastest() {
  static const ConvolutionTable& table = ConvolutionsAt(RunnableConvolutions() - 1);
  return table;
}

}  // namespace

std::int64_t RunnableConvolutions() {
  return std::string_view(comm::KernelIsa()) == baseline::kConvolutions.isa ? 1 : 2;
}

const ConvolutionTable& ConvolutionsAt(std::int64_t index) {
#if defined(__x86_64__)
  if (index > 0) return avx2::kConvolutions;
#endif
  return baseline::kConvolutions;
}

bool ConvolutionPays(const Convolution& shape) {
  const std::string_view isa = comm::KernelIsa();
  if (isa == baseline::kConvolutions.isa || shape.kernel_width < 2 ||
      shape.kernel_width > kWidestKernel || shape.pad_height >= shape.kernel_height ||
      shape.pad_width >= shape.kernel_width || shape.out_height() < 1 || shape.out_width() < 1 ||
      SumsSize(LoopsOf(shape)) > kMostSums)
    return false;
  const auto filled = [](Index count, Index lanes) {
    const Index places = (count + lanes - 1) / lanes * lanes;
    return static_cast<double>(places) / static_cast<double>(count);
  };
  // Others fill up channels. With AVX-512 that is to 16 of them, which they compute twice as fast.
  const bool is_wide = isa == "avx512";
  const Index lanes = is_wide ? 2 * kLanes : kLanes;
  const double theirs = filled(shape.in_channels, lanes) * filled(shape.out_channels, lanes);
  return theirs > (is_wide ? 2.5 : 1.05) * filled(shape.out_width(), kLanes);
}

void Convolve(const Convolution& shape, const float* input, const float* weights, const float* bias,
              float* output) {
  Check(shape);
  const ConvolutionLoops loops = LoopsOf(shape);
  const ConvolutionTable& table = Fastest();
  const Index kernel = loops.in_channels * loops.kernel_height * loops.kernel_width;
  const Index blocks = (loops.out_channels + kTogether - 1) / kTogether;  // As even as can be.
  const auto begin = [&](Index block) { return loops.out_channels * block / blocks; };
  std::vector<float> packed(static_cast<std::size_t>(kernel * loops.out_channels));
  float* to = packed.data();
  for (Index block = 0; block < blocks; ++block) {
    for (Index i = 0; i < kernel; ++i) {
      for (Index c = begin(block); c < begin(block + 1); ++c) *to++ = weights[c * kernel + i];
    }
  }
  const std::vector<float> none(static_cast<std::size_t>(bias == nullptr ? loops.out_channels : 0));
  const float* first = bias == nullptr ? none.data() : bias;
  Padded padded(shape, 1, loops.out_width < kLanes ? kLanes : 0);
  const Index plane = loops.out_height * loops.out_width;
  for (Index n = 0; n < shape.images; ++n) {
    const float* image = padded.At(input, n, 1);
    for (Index block = 0; block < blocks; ++block) {
      const Index c = begin(block);
      table.forward(loops, begin(block + 1) - c, image, packed.data() + c * kernel, first + c,
                    output + (n * loops.out_channels + c) * plane);
    }
  }
}

void ConvolutionInputGradient(const Convolution& shape, const float* output_gradient,
                              const float* weights, float* input_gradient) {
  Check(shape);
  const ConvolutionLoops loops = LoopsOf(shape);
  const ConvolutionTable& table = Fastest();
  const Index row = loops.out_channels * loops.kernel_width;
  std::vector<float> packed(
      static_cast<std::size_t>(loops.in_channels * loops.kernel_height * row));
  const float* from = weights;
  for (Index o = 0; o < loops.out_channels; ++o) {
    for (Index i = 0; i < loops.in_channels * loops.kernel_height; ++i, from += loops.kernel_width)
      std::copy_n(from, loops.kernel_width, packed.data() + i * row + o * loops.kernel_width);
  }
  const Index line = (loops.out_width + kLanes - 1) / kLanes * kLanes;
  const bool is_whole = line == loops.out_width;
  std::vector<float> lines(
      static_cast<std::size_t>(is_whole ? 0 : loops.out_channels * loops.out_height * line));
  std::vector<float> sums(static_cast<std::size_t>(SumsSize(loops)));
  const Index plane = loops.out_height * loops.out_width;
  for (Index n = 0; n < shape.images; ++n) {
    const float* gradient = output_gradient + n * loops.out_channels * plane;
    if (!is_whole) {
      for (Index r = 0; r < loops.out_channels * loops.out_height; ++r)
        std::copy_n(gradient + r * loops.out_width, loops.out_width, lines.data() + r * line);
      gradient = lines.data();
    }
    for (Index i = 0; i < loops.in_channels; ++i)
      table.input(loops, gradient, packed.data() + i * loops.kernel_height * row, sums.data(),
                  shape.pad_height, shape.pad_width, shape.height, shape.width,
                  input_gradient + (n * loops.in_channels + i) * shape.height * shape.width);
  }
}

void ConvolutionWeightGradient(const Convolution& shape, const float* input,
                               const float* output_gradient, std::int64_t begin, std::int64_t end,
                               float* weight_gradient, float* bias_gradient) {
  Check(shape);
  if (begin < 0 || begin > end || end > shape.out_channels)
    throw Error(Code::kInvalidArgument,
                fmt::format("channels {} to {} are not among {}", begin, end, shape.out_channels));
  const ConvolutionLoops loops = LoopsOf(shape);
  const ConvolutionTable& table = Fastest();
  const Index plane = loops.out_height * loops.out_width;
  const Index kernel = loops.in_channels * loops.kernel_height * loops.kernel_width;
  const Index most = WeightLines(loops.kernel_width);
  // What is turned stays in the first cache.
  const Index at_once = std::clamp<Index>(256 / plane, 1, shape.images);
  Padded padded(shape, at_once, 0);
  std::vector<float> turned(static_cast<std::size_t>(at_once * plane * most * kLanes));
  std::vector<float> sums(
      static_cast<std::size_t>(kernel * ((end - begin + kLanes - 1) / kLanes * kLanes)));
  const auto each = [&](auto body) {  // Some channels, their lines, and where their sums are.
    for (Index c = begin; c < end; c += most * kLanes) {
      const Index channels = std::min(most * kLanes, end - c);
      body(c, channels, (channels + kLanes - 1) / kLanes, sums.data() + kernel * (c - begin));
    }
  };
  for (Index n = 0; n < shape.images; n += at_once) {
    const Index images = std::min(at_once, shape.images - n);
    const float* own = padded.At(input, n, images);
    each([&](Index c, Index channels, Index lines, float* to) {
      for (Index i = 0; i < images; ++i)
        table.turn(channels, lines, plane,
                   output_gradient + ((n + i) * loops.out_channels + c) * plane,
                   turned.data() + i * plane * lines * kLanes);
      table.weights(loops, lines, images, own, turned.data(), to);
    });
  }
  each([&](Index c, Index channels, Index lines, const float* from) {
    for (Index own = 0; own < channels; ++own) {
      for (Index k = 0; k < kernel; ++k)
        weight_gradient[(c + own) * kernel + k] = from[k * lines * kLanes + own];
    }
  });
  if (bias_gradient == nullptr) return;
  for (Index c = begin; c < end; ++c) {
    double total = 0;
    for (Index n = 0; n < shape.images; ++n)
      total += table.sum(plane, output_gradient + (n * loops.out_channels + c) * plane);
    bias_gradient[c] = static_cast<float>(total);
  }
}

void MaxPool2x2(std::int64_t planes, std::int64_t height, std::int64_t width, const float* input,
                float* output, std::int64_t* indices) {
  if (std::min({planes, height, width}) < 0 ||
      (height > 0 && width > std::numeric_limits<std::int32_t>::max() / height))
    throw Error(Code::kInvalidArgument,
                fmt::format("{} planes of {} x {} are no planes of fewer than 2^31 elements",
                            planes, height, width));
  Fastest().max_pool(planes, height, width, input, output, indices);
}

}  // namespace orca::learn
