// Checkpoints to write, and what must come back.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "orca/io/checkpoint_store.h"

namespace orca::io {

/// A checkpoint whose every byte follows from `iteration` and `flavour`.
class Sample {
 public:
  explicit Sample(std::uint64_t iteration, unsigned flavour = 0, std::size_t elements = 300) {
    const auto number = [&](std::size_t i) {
      return static_cast<float>(iteration * 1000 + flavour * 100 + i);
    };
    for (std::size_t i = 0; i < elements; ++i) data_->weights.push_back(number(i));
    for (std::size_t i = 0; i < 7; ++i) data_->steps.push_back(static_cast<std::int64_t>(i * i));
    data_->flags = {1, 0, static_cast<std::uint8_t>(flavour)};
    content_.progress = {.iteration = iteration, .epoch = iteration / 10, .cursor = iteration * 32};
    content_.parts["model"] = {
        View("flags", TensorType::kBool, {3}, std::span(data_->flags)),
        View("weight", TensorType::kFloat32, {static_cast<std::int64_t>(elements)},
             std::span(data_->weights))};
    content_.parts["optimizer"] = {
        View("step", TensorType::kInt64, {7, 1}, std::span(data_->steps))};
    content_.fields = R"({"flavour": )" + std::to_string(flavour) +
                      R"(, "rng": 340282366920938463463374607431768211455})";
    content_.owner = data_;
  }

  const CheckpointContent& content() const { return content_; }

  /// Whether `found` is this one, all of it.
  void ExpectEqual(const Checkpoint& found) const {
    EXPECT_EQ(found.progress(), content_.progress);
    EXPECT_EQ(found.fields(), content_.fields);
    EXPECT_EQ(found.parts().size(), content_.parts.size());
    for (const auto& [part, tensors] : content_.parts) {
      EXPECT_EQ(found.part(part).tensors().size(), tensors.size());
      for (const Tensor& tensor : tensors) {
        const Tensor& got = found.part(part).Find(tensor.spec.name);
        EXPECT_EQ(got.spec, tensor.spec);
        EXPECT_TRUE(std::ranges::equal(got.data, tensor.data)) << tensor.spec.name;
      }
    }
  }

 private:
  struct Data {
    std::vector<float> weights;
    std::vector<std::int64_t> steps;
    std::vector<std::uint8_t> flags;
  };

  template <typename T>
  static Tensor View(const char* name, TensorType type, std::vector<std::int64_t> shape,
                     std::span<T> values) {
    return {.spec = {.name = name, .type = type, .shape = std::move(shape)},
            .data = std::as_bytes(values)};
  }

  std::shared_ptr<Data> data_ = std::make_shared<Data>();
  CheckpointContent content_;
};

}  // namespace orca::io
