#include "orca/net/handshake.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "net/crypto.h"
#include "net/wire.h"
#include "orca/core/error.h"
#include "orca/net/socket.h"

namespace orca::net {
namespace {

constexpr std::string_view kMagic = "orca-net";
constexpr std::uint32_t kProtocolVersion = 1;
constexpr std::string_view kProofLabel = "orca handshake proof";
constexpr std::string_view kKeyLabel = "orca session key";
constexpr char kFromClient = 'C';
constexpr char kFromServer = 'S';

// Where the parts of the client's first message are.
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kJobAt = 12;
constexpr std::size_t kGenerationAt = 28;
constexpr std::size_t kRoleAt = 36;
constexpr std::size_t kRankAt = 40;
constexpr std::size_t kIndexAt = 44;
constexpr std::size_t kNonceAt = 48;

ConstBytes Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

void EncodeHello(const Hello& hello, std::byte* to) {
  std::memcpy(to, kMagic.data(), kMagic.size());
  StoreLittle(to + kVersionAt, kProtocolVersion);
  std::memcpy(to + kJobAt, hello.job.data(), hello.job.size());
  StoreLittle(to + kGenerationAt, hello.generation);
  StoreLittle(to + kRoleAt, hello.role);
  StoreLittle(to + kRankAt, hello.rank);
  StoreLittle(to + kIndexAt, hello.index);
}

Hello DecodeHello(const std::byte* from) {
  if (std::memcmp(from, kMagic.data(), kMagic.size()) != 0) {
    throw Error(Code::kUnauthenticated,
                "the other end does not speak Orca's protocol; check who connects to this port");
  }
  const auto version = LoadLittle<std::uint32_t>(from + kVersionAt);
  if (version != kProtocolVersion) {
    throw Error(Code::kUnauthenticated,
                fmt::format("the other end speaks protocol {}, this build speaks {}; "
                            "use the same version of Orca everywhere",
                            version, kProtocolVersion));
  }
  Hello hello;
  std::memcpy(hello.job.data(), from + kJobAt, hello.job.size());
  hello.generation = LoadLittle<std::uint64_t>(from + kGenerationAt);
  hello.role = LoadLittle<std::uint32_t>(from + kRoleAt);
  hello.rank = LoadLittle<std::uint32_t>(from + kRankAt);
  hello.index = LoadLittle<std::uint32_t>(from + kIndexAt);
  return hello;
}

}  // namespace

std::array<std::uint8_t, 16> HashName(const std::string& name) {
  const Digest digest = Sha256(Bytes(name));
  std::array<std::uint8_t, 16> hash{};
  std::copy_n(digest.begin(), hash.size(), hash.begin());
  return hash;
}

Handshake::Handshake(const Secret& secret, State state) : secret_(secret), state_(state) {
  const auto& bytes = secret.bytes();
  // A Secret that nobody filled in would let everybody in.
  if (std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte == 0; })) {
    throw Error(
        Code::kInvalidArgument,
        "the secret is empty; make one with Secret::Random or read one with Secret::FromFile");
  }
}

Handshake::~Handshake() { OPENSSL_cleanse(&keys_, sizeof keys_); }

Handshake Handshake::Client(const Secret& secret, const Hello& hello) {
  Handshake client(secret, State::kServerNonce);
  client.hello_ = hello;
  EncodeHello(hello, client.transcript_.data());
  std::array<std::uint8_t, kNonceBytes> nonce{};
  FillRandom(nonce);
  std::memcpy(client.transcript_.data() + kNonceAt, nonce.data(), nonce.size());
  client.Send(std::span(client.transcript_).first<kHelloBytes>());
  return client;
}

Handshake Handshake::Server(const Secret& secret, std::function<void(const Hello&)> admit) {
  Handshake server(secret, State::kHello);
  server.admit_ = std::move(admit);
  return server;
}

std::vector<std::byte> Handshake::TakeOutput() { return std::exchange(output_, {}); }

std::size_t Handshake::wanted() const {
  switch (state_) {
    case State::kHello:
      return kHelloBytes - filled_;
    case State::kServerNonce:
      return kNonceBytes - filled_;
    case State::kClientProof:
    case State::kServerProof:
      return kProofBytes - filled_;
    case State::kDone:
    case State::kFailed:
      return 0;
  }
  return 0;
}

void Handshake::Feed(std::span<const std::byte> bytes) {
  if (state_ == State::kFailed) {
    throw Error(Code::kUnauthenticated, "the handshake has failed already; close the connection");
  }
  if (bytes.size() > wanted()) {
    throw Error(
        Code::kInvalidArgument,
        fmt::format("{} bytes are too many for a handshake that wants {}", bytes.size(), wanted()));
  }
  if (bytes.empty()) return;
  std::memcpy(input_.data() + filled_, bytes.data(), bytes.size());
  filled_ += bytes.size();
  if (wanted() > 0) return;
  // A step that throws leaves the machine failed, with nothing to send.
  const State arrived = std::exchange(state_, State::kFailed);
  filled_ = 0;
  Step(arrived);
}

void Handshake::Step(State arrived) {
  switch (arrived) {
    case State::kHello:
      return TakeHello();
    case State::kServerNonce:
      return TakeServerNonce();
    case State::kClientProof:
      return TakeClientProof();
    case State::kServerProof:
      return TakeServerProof();
    case State::kDone:
    case State::kFailed:
      return;
  }
}

void Handshake::TakeHello() {
  hello_ = DecodeHello(input_.data());
  std::copy(input_.begin(), input_.end(), transcript_.begin());
  std::array<std::uint8_t, kNonceBytes> nonce{};
  FillRandom(nonce);
  std::memcpy(transcript_.data() + kHelloBytes, nonce.data(), nonce.size());
  Send(std::as_bytes(std::span(nonce)));
  state_ = State::kClientProof;
}

void Handshake::TakeServerNonce() {
  std::copy_n(input_.begin(), kNonceBytes, transcript_.begin() + kHelloBytes);
  const Digest proof = Proof(kFromClient);
  Send(std::as_bytes(std::span(proof)));
  state_ = State::kServerProof;
}

void Handshake::TakeClientProof() {
  if (!Equal(Proof(kFromClient), std::span(input_).first<kProofBytes>())) {
    throw Error(Code::kUnauthenticated,
                "a client could not prove that it knows the secret; give all processes of the job "
                "the same one");
  }
  if (admit_) admit_(hello_);
  const Digest proof = Proof(kFromServer);
  Send(std::as_bytes(std::span(proof)));
  Finish();
}

void Handshake::TakeServerProof() {
  if (!Equal(Proof(kFromServer), std::span(input_).first<kProofBytes>())) {
    throw Error(Code::kUnauthenticated,
                "the server could not prove that it knows the secret; give all processes of the "
                "job the same one");
  }
  Finish();
}

std::array<std::uint8_t, 32> Handshake::Proof(char direction) const {
  return HmacSha256(secret_.bytes(), {Bytes(kProofLabel), transcript_, Bytes({&direction, 1})});
}

void Handshake::Finish() {
  const auto derive = [this](char direction) {
    return HkdfSha256(secret_.bytes(), transcript_,
                      Bytes(fmt::format("{} {}", kKeyLabel, direction)));
  };
  keys_.client_to_server = derive(kFromClient);
  keys_.server_to_client = derive(kFromServer);
  state_ = State::kDone;
}

void Handshake::Send(std::span<const std::byte> bytes) {
  output_.insert(output_.end(), bytes.begin(), bytes.end());
}

const Hello& Handshake::hello() const { return hello_; }

const SessionKeys& Handshake::keys() const {
  if (!done())
    throw Error(Code::kFailedPrecondition, "the handshake has no keys before it is done");
  return keys_;
}

SessionKeys ConnectHandshake(int fd, const Secret& secret, const Hello& hello,
                             const Deadline& deadline) {
  Handshake client = Handshake::Client(secret, hello);
  bool proved = false;
  try {
    while (!client.done()) {
      SendAll(fd, client.TakeOutput(), deadline);
      std::array<std::byte, 128> buffer;
      const auto message = std::span(buffer).first(client.wanted());
      RecvAll(fd, message, deadline);
      client.Feed(message);
      proved = true;
    }
  } catch (const Error& error) {
    if (error.code() != Code::kPeerLost) throw;
    if (!proved) {
      throw Error(
          Code::kPeerLost,
          fmt::format("{}, before its part of the handshake; check that it is an Orca process of "
                      "protocol {} and not too busy",
                      error.what(), kProtocolVersion));
    }
    // A server that is not convinced says nothing more.
    throw Error(
        Code::kUnauthenticated,
        fmt::format("{}, on the proof of rank {} (generation {}): its secret is another one, or it "
                    "does not admit this rank",
                    error.what(), hello.rank, hello.generation));
  }
  return client.keys();
}

}  // namespace orca::net
