// The one exception type of the engine.
#pragma once

#include <stdexcept>
#include <string>

#include "orca/core/export.h"

namespace orca {

/// What went wrong, for programs. The message is for people: it names the value, the limit and the
/// remedy.
enum class Code {
  kInvalidArgument = 1,  ///< The caller passed something that can never work.
  kFailedPrecondition =
      2,  ///< The object is not in a state that allows the call (a forked child, a closed group).
  kMismatch = 3,         ///< Ranks made different calls; the message shows both.
  kTimeout = 4,          ///< A deadline passed; the message names who was waited for.
  kPeerLost = 5,         ///< A peer died, left, fell silent or its link broke.
  kAborted = 6,          ///< Somebody called Abort.
  kUnauthenticated = 7,  ///< A peer could not prove that it knows the secret.
  kResourceExhausted =
      8,             ///< Memory, descriptors or processes ran out; the message names the limit.
  kUnavailable = 9,  ///< An address, a port or a host cannot be used.
  kInternal = 10,    ///< A bug of ours.
};

/// Returns the name of `code` as it appears in messages, e.g. "timeout".
ORCA_API const char* CodeName(Code code);

/// What every failing call of the engine throws.
class ORCA_API Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& message) : std::runtime_error(message), code_(code) {}

  Code code() const { return code_; }

 private:
  Code code_;
};

}  // namespace orca
