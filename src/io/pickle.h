// What a pickle says, as a graph: nothing that it names is looked up, nothing that it calls is run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <vector>

#include "orca/io/file_system.h"

namespace orca::io {

struct PickleNode {
  enum class Kind {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kList,
    kTuple,
    kDict,
    kGlobal,      ///< A class or a function: `module` and `text`.
    kCall,        ///< `function` called with `arguments`, then filled with `items` and a state.
    kPersistent,  ///< What the writer calls `arguments`.
    kOther,       ///< What no file of ours holds; `text` says what.
  };

  Kind kind = Kind::kNone;
  bool has_state = false;    ///< Attributes were set; they are not kept.
  std::uint64_t offset = 0;  ///< In the file.
  std::int64_t whole = 0;    ///< Of kBool, too.
  double number = 0;
  std::string_view module;
  std::string_view text;
  const PickleNode* function = nullptr;
  const PickleNode* arguments = nullptr;
  std::vector<const PickleNode*> items;  ///< Of a dict: key, value, key, value.
};

/// A graph: values may be shared, and a container may hold itself. Texts are views of the pickle.
struct Pickle {
  std::deque<PickleNode> nodes;  ///< A deque: nodes point to each other.
  const PickleNode* root = nullptr;
};

/// Reads a pickle of protocol 2 to 5 that begins at `offset` of a file. Needs memory in proportion
/// to its bytes. Throws kUnavailable when it is damaged, kInvalidArgument for another protocol and
/// for instructions that torch.save does not use.
Pickle ParsePickle(const Path& path, std::span<const std::byte> bytes, std::uint64_t offset);

}  // namespace orca::io
