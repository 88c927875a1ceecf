// Files of a test: their bytes, and tensors for them.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "orca/io/tensor.h"
#include "testing/folder.h"

namespace orca::io {

inline std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void WriteAllTo(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

template <typename T>
Tensor MakeTensor(const std::string& name, TensorType type, std::vector<std::int64_t> shape,
                  const std::vector<T>& values) {
  return {.spec = {.name = name, .type = type, .shape = std::move(shape)},
          .data = std::as_bytes(std::span(values))};
}

inline std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace orca::io
