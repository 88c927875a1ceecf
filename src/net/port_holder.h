// Who sits on a port.
#pragma once

#include <cstdint>
#include <string>

namespace orca::net {

/// Names the process of this host that holds the TCP port, e.g. "process 4711 (python3)"; "another
/// process" when the kernel does not say.
std::string PortHolder(std::uint16_t port);

}  // namespace orca::net
