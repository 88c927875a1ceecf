// The process that supervises the workers of one node.
#pragma once

#include <cstdint>
#include <string>

#include "orca/core/export.h"
#include "orca/core/unique_fd.h"

namespace orca::runtime {

/// Serves the driver at the other end of `driver` (a Unix socket made by the driver): starts
/// nurseries and workers, hands them their tasks, passes on what they say, notices when they die or
/// fall silent. Returns when it is told to stop or the driver is gone; by then no process that it
/// started is left.
ORCA_API void RunAgent(UniqueFd driver);

/// Joins the driver that listens at `address` ("host:port") and knows the same secret, and serves
/// it in the same way.
ORCA_API void JoinAsAgent(const std::string& address, const std::string& secret_file);

/// What an agent says it is in its handshake.
inline constexpr std::uint32_t kAgentRole = 0x41474e54;

}  // namespace orca::runtime
