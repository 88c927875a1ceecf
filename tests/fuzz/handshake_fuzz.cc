// The first byte chooses who is attacked: 0 a server by raw bytes, 1 a client by raw bytes, 2 both
// by somebody in between who changes what they say. Nobody but the undisturbed pair may come to an
// end.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "input.h"
#include "orca/core/error.h"
#include "orca/net/handshake.h"

namespace orca::net {
namespace {

Secret FixedSecret() { return Secret::FromHex(std::string(64, 'a')); }

void AttackByBytes(Handshake handshake, FuzzInput& input) {
  while (!input.empty()) {
    const std::size_t piece = 1 + input.TakeByte();
    const auto bytes = input.TakeBytes(std::min(piece, handshake.wanted()));
    if (bytes.empty()) break;
    Require(bytes.size() <= handshake.wanted() && handshake.wanted() <= 128);
    handshake.Feed(bytes);
    handshake.TakeOutput();
    Require(!handshake.done());
  }
}

void AttackBetween(FuzzInput& input) {
  const Hello hello{.job = HashName("job"), .generation = 1, .role = 2, .rank = 3, .index = 4};
  Handshake client = Handshake::Client(FixedSecret(), hello);
  Handshake server = Handshake::Server(FixedSecret(), [](const Hello&) {});
  bool changed = false;
  for (int turn = 0; turn < 4; ++turn) {
    Handshake& from = turn % 2 == 0 ? client : server;
    Handshake& to = turn % 2 == 0 ? server : client;
    std::vector<std::byte> message = from.TakeOutput();
    const auto mask = input.TakeBytes(message.size());
    for (std::size_t i = 0; i < mask.size(); ++i) {
      message[i] ^= mask[i];
      changed = changed || mask[i] != std::byte{0};
    }
    to.Feed(message);
    Require(!(changed && client.done()));
  }
  Require(client.done() && server.done() && server.hello() == hello);
}

}  // namespace
}  // namespace orca::net

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orca;
  using namespace orca::net;
  FuzzInput input(data, size);
  try {
    switch (input.TakeByte() % 3) {
      case 0:
        AttackByBytes(Handshake::Server(FixedSecret(), [](const Hello&) { Require(false); }),
                      input);
        break;
      case 1:
        AttackByBytes(Handshake::Client(FixedSecret(), Hello{}), input);
        break;
      default:
        AttackBetween(input);
    }
  } catch (const Error& error) {
    Require(error.code() == Code::kUnauthenticated);
  }
  return 0;
}
