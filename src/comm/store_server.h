// The serving end of a TCP store.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <thread>

#include "comm/store_map.h"
#include "comm/store_session.h"
#include "orca/comm/store.h"
#include "orca/core/deadline.h"
#include "orca/core/unique_fd.h"
#include "orca/net/acceptor.h"
#include "orca/net/secret.h"

namespace orca::comm {

/// Serves all clients from one thread, and its own process directly. Any thread.
class StoreServer final : public Store {
 public:
  StoreServer(const std::string& address, const net::Secret& secret);
  ~StoreServer() override;

  void Set(const std::string& key, const std::string& value) override;
  std::string Get(const std::string& key, std::chrono::milliseconds timeout) override;

  /// The address that clients connect to.
  const std::string& address() const { return address_; }
  /// How many connections could not prove that they know the secret, or forged a frame.
  std::uint64_t refused() const { return refused_; }

 private:
  void Serve(const std::stop_token& stop);
  void ServeOnce();
  void Wake();
  void Advance(StoreSession& session, short revents);
  std::optional<Deadline> NextDeadline() const;

  std::string address_;
  UniqueFd wake_;  // An eventfd: the map has changed, or the server stops.
  StoreMap map_;
  std::atomic<std::uint64_t> refused_{0};

  // Used by the thread only.
  net::Acceptor acceptor_;
  std::list<StoreSession> sessions_;
  std::uint64_t forged_ = 0;
  std::uint64_t seen_version_ = 0;  // Of the map, when the waiting gets were last looked at.

  std::jthread thread_;  // Last, so that it ends before what it uses.
};

}  // namespace orca::comm
