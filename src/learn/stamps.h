// Where tests may kill a process: between two writes to memory that outlives it.
#pragma once

namespace orca::learn {

/// Called at every such place; null except in tests.
inline void (*at_stamp)() = nullptr;

inline void Stamp() {
  if (at_stamp != nullptr) [[unlikely]]
    at_stamp();
}

}  // namespace orca::learn
