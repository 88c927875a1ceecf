#include "orca/core/error.h"

namespace orca {

const char* CodeName(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kFailedPrecondition:
      return "failed precondition";
    case Code::kMismatch:
      return "mismatch";
    case Code::kTimeout:
      return "timeout";
    case Code::kPeerLost:
      return "peer lost";
    case Code::kAborted:
      return "aborted";
    case Code::kUnauthenticated:
      return "unauthenticated";
    case Code::kResourceExhausted:
      return "resource exhausted";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kInternal:
      return "internal";
  }
  return "unknown";
}

}  // namespace orca
