// Where the ranks of a group find each other.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "orca/core/export.h"
#include "orca/net/secret.h"

namespace orca::comm {

/// A small shared map that ranks use only while a group forms. Implementations may be used from
/// several threads.
class ORCA_API Store {
 public:
  virtual ~Store() = default;
  /// Makes `value` visible under `key` to every rank.
  virtual void Set(const std::string& key, const std::string& value) = 0;
  /// Returns the value of `key`; waits until somebody sets it, throws kTimeout when `timeout` has
  /// passed.
  virtual std::string Get(const std::string& key, std::chrono::milliseconds timeout) = 0;
};

/// A store for ranks that are threads of one process.
ORCA_API std::shared_ptr<Store> NewMemoryStore();

/// A store in a directory that all ranks see. Values are written beside and renamed.
ORCA_API std::shared_ptr<Store> NewFileStore(const std::string& directory);

/// Starts a store that listens on `address` ("host:port", port 0 for any free one) and serves
/// clients that know `secret`, until the returned object is destroyed. `bound` receives the address
/// that clients connect to.
ORCA_API std::shared_ptr<Store> ServeTcpStore(const std::string& address, const net::Secret& secret,
                                              std::string* bound);

/// Connects to a store made by ServeTcpStore; retries until `timeout`.
ORCA_API std::shared_ptr<Store> ConnectTcpStore(const std::string& address,
                                                const net::Secret& secret,
                                                std::chrono::milliseconds timeout);

}  // namespace orca::comm
