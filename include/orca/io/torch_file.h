// Files of torch.save, read and written without Python.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "orca/core/export.h"
#include "orca/io/file_system.h"
#include "orca/io/tensor.h"

namespace orca::io {

/// What torch.save can have written, as far as it is plain: no code runs when it is read.
struct TorchValue {
  enum class Kind { kNone, kBool, kInt, kFloat, kText, kTensor, kList, kTuple, kDict };

  Kind kind = Kind::kNone;
  bool flag = false;
  std::int64_t whole = 0;
  double number = 0;
  std::string text;               ///< UTF-8.
  Tensor tensor;                  ///< Row-major; its name is empty.
  std::vector<TorchValue> items;  ///< Of a dict: key, value, key, value.

  static TorchValue Bool(bool flag) { return {.kind = Kind::kBool, .flag = flag}; }
  static TorchValue Int(std::int64_t whole) { return {.kind = Kind::kInt, .whole = whole}; }
  static TorchValue Float(double number) { return {.kind = Kind::kFloat, .number = number}; }
  static TorchValue Text(std::string text) {
    return {.kind = Kind::kText, .text = std::move(text)};
  }
  static TorchValue Of(Tensor tensor) {
    return {.kind = Kind::kTensor, .tensor = std::move(tensor)};
  }
  static TorchValue List(std::vector<TorchValue> items = {}) {
    return {.kind = Kind::kList, .items = std::move(items)};
  }
  static TorchValue Tuple(std::vector<TorchValue> items = {}) {
    return {.kind = Kind::kTuple, .items = std::move(items)};
  }
  static TorchValue Dict() { return {.kind = Kind::kDict}; }

  /// Appends an entry to a dict.
  void Add(std::string key, TorchValue value) {
    items.push_back(Text(std::move(key)));
    items.push_back(std::move(value));
  }
  /// The entry of a dict under a text; null where there is none, and where this is no dict.
  ORCA_API const TorchValue* Find(std::string_view key) const;
};

/// A file that was read. Its tensors are views of the mapped file, or of copies where the file has
/// their elements in another order or at odd addresses.
struct TorchFile {
  TorchValue value;
  std::shared_ptr<const void> owner;  ///< Keeps the tensors' data.
};

/// Reads what torch.save of torch 1.6 or newer has written, as far as it is made of numbers, texts,
/// tensors, lists, tuples and dicts; tensors of any device come to the host. Checksums are
/// compared. Throws kUnavailable, with the reason and the offset, when the file is damaged, and
/// kInvalidArgument, with its name, for what only Python can make: save a state dict.
ORCA_API TorchFile ReadTorchFile(const Path& path, FileSystem& files = RealFiles());

/// Compares the checksums of all records of a zip archive that is not compressed, as torch.save and
/// numpy.savez write it. Throws kUnavailable, with the reason and the offset, when it is damaged or
/// no such archive, and kInvalidArgument when it is compressed. Where torch was told to leave the
/// checksums out, there is nothing to compare.
ORCA_API void CheckZipFile(const Path& path, FileSystem& files = RealFiles());

/// Writes a file that torch.load(path, weights_only=True) reads, also with mmap=True; it is
/// completely there or not there. A tensor's name is not kept. Throws kInvalidArgument for texts
/// that are not UTF-8, for keys that are double or that Python cannot look up, and for tensors
/// whose data do not fit their shape.
ORCA_API void WriteTorchFile(const Path& path, const TorchValue& value,
                             FileSystem& files = RealFiles());
/// The bytes of such a file. Throws as WriteTorchFile does.
ORCA_API std::string TorchFileBytes(const TorchValue& value);

}  // namespace orca::io
